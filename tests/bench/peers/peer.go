// Shared by the peers that are written in Go: payloads that contain the number
// of the job, the check that each job is delivered once, and the commands,
// which peers.c describes.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Each peer has a system with these functions.
type system interface {
	// offer offers jobs 0 to count - 1, each due `delay` after its offer.
	offer(batch, count int, delay time.Duration) error
	// arrive offers the jobs that arrivals returns. due has their due times.
	arrive(due []time.Time, arrivals func() (from, to int)) error
	// consume calls begun after its consumer has started, and passes jobs to
	// `handle`, until `done` has a value. It checks that no job is left, and
	// returns how long all this took, without the time for an orderly end.
	consume(batch int, begun func() error, handle func(payload []byte),
		done <-chan error) (time.Duration, error)
}

func payload(i int) []byte {
	return []byte(fmt.Sprintf("%08d", i) + strings.Repeat("x", 92))
}

// take handles count jobs, each once. It calls begun after the consumer has
// started.
func take(s system, batch, count int, begun func() error,
	arrived func(i int, now time.Time)) (time.Duration, error) {
	var mutex sync.Mutex
	seen := make([]bool, count)
	left := count
	done := make(chan error, 1)
	end := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	timer := time.AfterFunc(40*time.Second, func() {
		end(errors.New("none came"))
	})
	defer timer.Stop()
	return s.consume(batch, begun, func(payload []byte) {
		now := time.Now()
		i, err := strconv.Atoi(string(payload[:8]))
		mutex.Lock()
		defer mutex.Unlock()
		if err != nil || len(payload) != 100 || i >= count || seen[i] {
			end(errors.New("never offered, or delivered twice"))
			return
		}
		seen[i] = true
		arrived(i, now)
		if left--; left == 0 {
			end(nil)
		}
	}, done)
}

// open offers jobs that arrive at a fixed rate.
func open(s system, rate, count, delay int) (string, error) {
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
	next := 0
	arrivals := func() (from, to int) {
		if from = next; from == count {
			return from, from
		}
		time.Sleep(time.Until(arrives(from)))
		for next++; next < count && next < from+100 &&
			time.Until(arrives(next)) <= 0; next++ {
		}
		return from, next
	}
	_, err := take(s, 100, count, func() error { return s.arrive(due, arrivals) },
		func(i int, now time.Time) {
			us[i+1] = strconv.FormatInt(now.Sub(due[i]).Microseconds(), 10)
			last = now
		})
	us[0] = fmt.Sprint(last.Sub(first.Add(late)).Seconds())
	return strings.Join(us, " "), err
}

func answer(s system, line string) (string, error) {
	var verb string
	var a, b, c int
	fmt.Sscan(line, &verb, &a, &b, &c)
	switch verb {
	case "open":
		return open(s, a, b, c)
	case "take":
		took, err := take(s, a, b, func() error { return nil },
			func(int, time.Time) {})
		return fmt.Sprint(took.Seconds()), err
	}
	begin := time.Now()
	err := s.offer(a, b, time.Duration(c)*time.Millisecond)
	return fmt.Sprint(time.Since(begin).Seconds()), err
}

func serve(s system, about string) {
	fmt.Println("ready", about)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		text, err := answer(s, lines.Text())
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println("ok", text)
	}
}
