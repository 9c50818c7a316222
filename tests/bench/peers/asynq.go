// asynq as a peer.
//
//	asynq 127.0.0.1:PORT
//
// A batch of 1 is one Enqueue after the other and Concurrency 1. A batch of 100
// is 100 goroutines that enqueue (asynq 0.26 has no bulk enqueue), and
// Concurrency 100. Both poll intervals are 10 ms. By default they are 5 s for
// scheduled tasks and 1 s for an empty queue.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/hibiken/asynq"
)

const poll = 10 * time.Millisecond

type asynqSystem struct {
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
}

func (s *asynqSystem) enqueue(i int, due time.Time) error {
	_, err := s.client.Enqueue(asynq.NewTask("job", payload(i)),
		asynq.ProcessAt(due))
	return err
}

// inParallel calls f in n goroutines. It returns their first error.
func inParallel(n int, f func(g int) error) error {
	results := make(chan error, n)
	for g := 0; g < n; g++ {
		go func() { results <- f(g) }()
	}
	var err error
	for g := 0; g < n; g++ {
		if one := <-results; err == nil {
			err = one
		}
	}
	return err
}

func (s *asynqSystem) offer(batch, count int, delay time.Duration) error {
	return inParallel(batch, func(g int) error {
		for i := g; i < count; i += batch {
			if err := s.enqueue(i, time.Now().Add(delay)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *asynqSystem) arrive(due []time.Time,
	arrivals func() (from, to int)) error {
	arrived := make(chan int, len(due))
	go func() {
		for from, to := arrivals(); from < to; from, to = arrivals() {
			for i := from; i < to; i++ {
				arrived <- i
			}
		}
		close(arrived)
	}()
	return inParallel(100, func(int) error {
		var err error
		for i := range arrived {
			if err == nil {
				err = s.enqueue(i, due[i])
			}
		}
		return err
	})
}

func (s *asynqSystem) consume(batch int, begun func() error,
	handle func(payload []byte), done <-chan error) (time.Duration, error) {
	server := asynq.NewServer(s.redis, asynq.Config{
		Concurrency:              batch,
		TaskCheckInterval:        poll,
		DelayedTaskCheckInterval: poll,
		LogLevel:                 asynq.FatalLevel,
	})
	begin := time.Now()
	err := server.Start(asynq.HandlerFunc(
		func(_ context.Context, task *asynq.Task) error {
			handle(task.Payload())
			return nil
		}))
	if err != nil {
		return 0, err
	}
	if err = begun(); err == nil {
		err = <-done
	}
	took := time.Since(begin)
	server.Shutdown()
	if info, _ := s.inspector.GetQueueInfo("default"); err == nil &&
		(info == nil || info.Size != 0) {
		err = errors.New("tasks are left")
	}
	return took, err
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == "github.com/hibiken/asynq" {
			return dep.Version
		}
	}
	return "?"
}

func main() {
	redis := asynq.RedisClientOpt{Addr: os.Args[1]}
	serve(&asynqSystem{redis, asynq.NewClient(redis), asynq.NewInspector(redis)},
		fmt.Sprintf("asynq %s, %s: Enqueue, Concurrency 1; batch 100: "+
			"100 goroutines enqueue, Concurrency 100; polls each 10 ms "+
			"(default 5 s and 1 s)", version(), runtime.Version()))
}
