// Shared by the peers of bench-chaos that are written in Go. chaos.c describes
// the work of a peer.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Each peer has a system with these functions.
type system interface {
	connect(port string) error // is repeated until it succeeds
	// when returns the due time that the system can keep, as a wall-clock
	// time, and in microseconds.
	when(due int64) (time.Time, int64)
	offer(id int64, payload []byte, due time.Time) error
	work() error // calls handle for each job, in up to 8 goroutines; returns
	left() (left, dead int64, err error)
}

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

// wall returns a time as a wall-clock time, which may be late, but not early.
func wall(us int64) time.Time {
	left := us - nowUs()
	return time.Now().Add(time.Duration(left) * time.Microsecond)
}

func record(kind string, a, b int64) {
	fmt.Fprintf(records, "%s %d %d %d\n", kind, a, b, nowUs())
}

// handle does a job that a worker has received.
func handle(payload []byte) error {
	words := strings.Fields(string(payload))
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

// repeat calls f until it succeeds.
func repeat(f func() error) {
	for {
		err := f()
		if err == nil {
			return
		}
		fmt.Fprintln(os.Stderr, nowUs(), err)
		time.Sleep(100 * time.Millisecond)
	}
}

func offerEach(s system, thread, jobs, rate, start int64) {
	for id := thread; id < jobs; id += 4 {
		at := start + id*1000000/rate
		sleepUntil(at)
		day, due := s.when(at + 500000 + id*7919%1000*1000)
		text := fmt.Sprintf("%08d %020d ", id, due)
		text += strings.Repeat("x", 100-len(text))
		repeat(func() error { return s.offer(id, []byte(text), day) })
		record("O", id, due)
	}
}

func produce(s system, jobs, rate int64) {
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
			offerEach(s, thread, jobs, rate, start)
		}()
	}
	group.Wait()
	for {
		if left, dead, err := s.left(); err == nil {
			record("L", left, dead)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// run reads the arguments: work|produce PORT RECORDS JOBS RATE
func run(s system) {
	jobs, _ := strconv.ParseInt(os.Args[4], 10, 64)
	rate, _ := strconv.ParseInt(os.Args[5], 10, 64)
	var err error
	records, err = os.OpenFile(os.Args[3],
		os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0600)
	if err != nil {
		os.Exit(2)
	}
	repeat(func() error { return s.connect(os.Args[2]) })
	if os.Args[1] == "work" {
		repeat(s.work)
		fmt.Println("ready")
		select {}
	}
	fmt.Println("ready")
	produce(s, jobs, rate)
}
