// asynq as a peer. peers.c describes the commands.
//
//	asynq 127.0.0.1:PORT
//
// A batch of 1 is one Enqueue after the other and Concurrency 1. A batch of 100
// is 100 goroutines that enqueue (asynq 0.26 has no bulk enqueue), and
// Concurrency 100. Both poll intervals are 10 ms. By default they are 5 s for
// scheduled tasks and 1 s for an empty queue.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

const poll = 10 * time.Millisecond

var (
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
)

func enqueue(i int, due time.Time) error {
	payload := fmt.Sprintf("%08d", i) + strings.Repeat("x", 92)
	task := asynq.NewTask("job", []byte(payload))
	_, err := client.Enqueue(task, asynq.ProcessAt(due))
	return err
}

func offer(batch, count, delay int) error {
	var group sync.WaitGroup
	failed := make(chan error, batch)
	for g := 0; g < batch; g++ {
		group.Add(1)
		go func(g int) {
			defer group.Done()
			for i := g; i < count; i += batch {
				due := time.Now().Add(time.Duration(delay) * time.Millisecond)
				if err := enqueue(i, due); err != nil {
					failed <- err
					return
				}
			}
		}(g)
	}
	group.Wait()
	close(failed)
	return <-failed
}

// consume handles count tasks, each once. It calls begun after the server has
// started, and returns when all tasks are acknowledged.
func consume(concurrency, count int, begun func() error,
	arrived func(i int, now time.Time)) (time.Duration, error) {
	var mutex sync.Mutex
	seen := make(map[int]bool)
	done := make(chan error, count+1)
	handler := func(_ context.Context, task *asynq.Task) error {
		now := time.Now()
		i, err := strconv.Atoi(string(task.Payload()[:8]))
		mutex.Lock()
		defer mutex.Unlock()
		if err != nil || len(task.Payload()) != 100 || i >= count || seen[i] {
			done <- errors.New("never offered, or delivered twice")
			return nil
		}
		seen[i] = true
		arrived(i, now)
		if len(seen) == count {
			done <- nil
		}
		return nil
	}
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:              concurrency,
		TaskCheckInterval:        poll,
		DelayedTaskCheckInterval: poll,
		LogLevel:                 asynq.FatalLevel,
	})
	begin := time.Now()
	if err := server.Start(asynq.HandlerFunc(handler)); err != nil {
		return 0, err
	}
	err := begun()
	if err == nil {
		select {
		case err = <-done:
		case <-time.After(40 * time.Second):
			err = errors.New("none came")
		}
	}
	took := time.Since(begin)
	server.Shutdown()
	if info, _ := inspector.GetQueueInfo("default"); err == nil &&
		(info == nil || info.Size != 0) {
		err = errors.New("tasks are left")
	}
	return took, err
}

// open offers jobs that arrive at a fixed rate, in 100 goroutines.
func open(rate, count, delay int) (string, error) {
	first := time.Now().Truncate(time.Millisecond).Add(300 * time.Millisecond)
	late := time.Duration(delay) * time.Millisecond
	due := make([]time.Time, count)
	us := make([]string, count+1)
	var last time.Time
	arrives := func(i int) time.Time {
		return first.Add(time.Duration(i) * time.Second / time.Duration(rate))
	}
	for i := range due {
		due[i] = arrives(i).Add(late + time.Millisecond - 1).
			Truncate(time.Millisecond)
	}
	_, err := consume(100, count, func() error {
		arrived := make(chan int, count)
		failed := make(chan error, 100)
		for g := 0; g < 100; g++ {
			go func() {
				var err error
				for i := range arrived {
					if err == nil {
						err = enqueue(i, due[i])
					}
				}
				failed <- err
			}()
		}
		for i := range due {
			time.Sleep(time.Until(arrives(i)))
			arrived <- i
		}
		close(arrived)
		var err error
		for g := 0; g < 100; g++ {
			err = errors.Join(err, <-failed)
		}
		return err
	}, func(i int, now time.Time) {
		us[i+1] = strconv.FormatInt(now.Sub(due[i]).Microseconds(), 10)
		last = now
	})
	us[0] = fmt.Sprint(last.Sub(first.Add(late)).Seconds())
	return strings.Join(us, " "), err
}

func answer(line string) (string, error) {
	var verb string
	var a, b, c int
	fmt.Sscan(line, &verb, &a, &b, &c)
	begin := time.Now()
	switch verb {
	case "open":
		return open(a, b, c)
	case "take":
		took, err := consume(a, b, func() error { return nil },
			func(int, time.Time) {})
		return fmt.Sprint(took.Seconds()), err
	}
	err := offer(a, b, c)
	return fmt.Sprint(time.Since(begin).Seconds()), err
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
	redis = asynq.RedisClientOpt{Addr: os.Args[1]}
	client = asynq.NewClient(redis)
	inspector = asynq.NewInspector(redis)
	fmt.Printf("ready asynq %s, %s: Enqueue, Concurrency 1; batch 100: "+
		"100 goroutines enqueue, Concurrency 100; polls each 10 ms "+
		"(default 5 s and 1 s)\n", version(), runtime.Version())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		text, err := answer(lines.Text())
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println("ok", text)
	}
}
