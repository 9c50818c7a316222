// asynq as a peer of bench-chaos. chaos.c describes the work of a peer.
//
//	asynq work|produce PORT RECORDS JOBS RATE
//
// A failed Enqueue is repeated with the same TaskID, so asynq stores the task
// once. asynq keeps due times in whole seconds and drops the fraction, so the
// due times here are rounded up. It polls every 100 ms (default 5 s and 1 s).
// When asynq notices that a worker has died, it retries the task after 1 s
// (default 15 s and more). Its lease of 30 s is a constant.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hibiken/asynq"
)

const poll = 100 * time.Millisecond

var records *os.File

// nowUs reads CLOCK_MONOTONIC, as all peers do.
func nowUs() int64 {
	var t syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1,
		uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano() / 1000
}

func sleepUntil(us int64) {
	time.Sleep(time.Duration(us-nowUs()) * time.Microsecond)
}

func record(kind string, a, b int64) {
	fmt.Fprintf(records, "%s %d %d %d\n", kind, a, b, nowUs())
}

func handle(_ context.Context, task *asynq.Task) error {
	words := strings.Fields(string(task.Payload()))
	id, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil {
		return err
	}
	due, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return err
	}
	record("B", id, due)
	time.Sleep(40 * time.Millisecond)
	record("E", id, due)
	return nil
}

// inSeconds rounds the due time up to a whole second. It returns the result as
// a wall-clock time, and in microseconds.
func inSeconds(due int64) (time.Time, int64) {
	wall := time.Now().Add(time.Duration(due-nowUs()) * time.Microsecond)
	whole := wall.Truncate(time.Second)
	if whole.Before(wall) {
		whole = whole.Add(time.Second)
	}
	return whole, due + whole.Sub(wall).Microseconds() + 1
}

func offerEach(client *asynq.Client, thread, jobs, rate, start int64) {
	for id := thread; id < jobs; id += 4 {
		at := start + id*1000000/rate
		sleepUntil(at)
		day, due := inSeconds(at + 500000 + id*7919%1000*1000)
		text := fmt.Sprintf("%08d %020d ", id, due)
		text += strings.Repeat("x", 100-len(text))
		task := asynq.NewTask("job", []byte(text))
		for {
			_, err := client.Enqueue(task, asynq.ProcessAt(day),
				asynq.TaskID(strconv.FormatInt(id, 10)))
			if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) {
				break
			}
			fmt.Fprintln(os.Stderr, nowUs(), err)
			time.Sleep(100 * time.Millisecond)
		}
		record("O", id, due)
	}
}

func produce(redis asynq.RedisClientOpt, jobs, rate int64) {
	client := asynq.NewClient(redis)
	for client.Ping() != nil {
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Println("ready")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	start, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		os.Exit(2)
	}
	var group sync.WaitGroup
	for thread := int64(0); thread < 4; thread++ {
		group.Add(1)
		go func() {
			defer group.Done()
			offerEach(client, thread, jobs, rate, start)
		}()
	}
	group.Wait()
	inspector := asynq.NewInspector(redis)
	for {
		if info, err := inspector.GetQueueInfo("default"); err == nil {
			record("L", int64(info.Pending+info.Active+info.Scheduled+
				info.Retry), int64(info.Archived))
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func work(redis asynq.RedisClientOpt) {
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:              8,
		TaskCheckInterval:        poll,
		DelayedTaskCheckInterval: poll,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			return time.Second
		},
		LogLevel: asynq.WarnLevel,
	})
	for {
		err := server.Start(asynq.HandlerFunc(handle))
		if err == nil {
			break
		}
		fmt.Fprintln(os.Stderr, nowUs(), err)
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Println("ready")
	select {}
}

func main() {
	redis := asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Args[2]}
	jobs, _ := strconv.ParseInt(os.Args[4], 10, 64)
	rate, _ := strconv.ParseInt(os.Args[5], 10, 64)
	var err error
	records, err = os.OpenFile(os.Args[3],
		os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0600)
	if err != nil {
		os.Exit(2)
	}
	if os.Args[1] == "work" {
		work(redis)
	}
	produce(redis, jobs, rate)
}
