// asynq as a peer of bench-chaos.
//
// A failed Enqueue is repeated with the same TaskID, so asynq stores the task
// once. asynq keeps due times in whole seconds and drops the fraction, so the
// due times here are rounded up. It polls every 100 ms (default 5 s and 1 s).
// When asynq notices that a worker has died, it retries the task after 1 s
// (default 15 s and more). Its lease of 30 s is a constant.
package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

const poll = 100 * time.Millisecond

type asynqSystem struct {
	redis  asynq.RedisClientOpt
	client *asynq.Client
}

func (s *asynqSystem) connect(port string) error {
	s.redis = asynq.RedisClientOpt{Addr: "127.0.0.1:" + port}
	if s.client == nil {
		s.client = asynq.NewClient(s.redis)
	}
	return s.client.Ping()
}

func (s *asynqSystem) when(due int64) (time.Time, int64) {
	day := wall(due)
	whole := day.Truncate(time.Second)
	if whole.Before(day) {
		whole = whole.Add(time.Second)
	}
	return whole, due + whole.Sub(day).Microseconds() + 1
}

func (s *asynqSystem) offer(id int64, payload []byte, due time.Time) error {
	_, err := s.client.Enqueue(asynq.NewTask("job", payload),
		asynq.ProcessAt(due), asynq.TaskID(strconv.FormatInt(id, 10)))
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil
	}
	return err
}

func (s *asynqSystem) work() error {
	server := asynq.NewServer(s.redis, asynq.Config{
		Concurrency:              8,
		TaskCheckInterval:        poll,
		DelayedTaskCheckInterval: poll,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			return time.Second
		},
		LogLevel: asynq.WarnLevel,
	})
	return server.Start(asynq.HandlerFunc(
		func(_ context.Context, task *asynq.Task) error {
			return handle(task.Payload())
		}))
}

func (s *asynqSystem) left() (left, dead int64, err error) {
	inspector := asynq.NewInspector(s.redis)
	defer inspector.Close()
	info, err := inspector.GetQueueInfo("default")
	if err != nil {
		return
	}
	left = int64(info.Pending + info.Active + info.Scheduled + info.Retry)
	return left, int64(info.Archived), nil
}

func main() {
	run(&asynqSystem{})
}
