// NATS as a peer. peers.c describes the commands.
//
//	nats nats://127.0.0.1:PORT SERVER_VERSION
//
// A job is a scheduled message (header Nats-Schedule) with a subject of its
// own. When it is due, the server stores its payload under the subject "jobs",
// and removes the schedule. The stream is a work queue in files: an acked
// message is deleted. A batch of 1 is one Publish after the other, and a
// consumer that has one message at a time. A batch of 100 is PublishMsgAsync
// with 100 unconfirmed messages, and a consumer with the client's defaults.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	js     jetstream.JetStream
	stream jetstream.Stream
	ctx    = context.Background()
)

// schedule returns job i. The function jetstream.WithScheduleAt would drop the
// fraction of a second.
func schedule(i int, due time.Time) *nats.Msg {
	job := nats.NewMsg(fmt.Sprintf("schedules.%d", i))
	job.Data = []byte(fmt.Sprintf("%08d", i) + strings.Repeat("x", 92))
	job.Header.Set(jetstream.ScheduleHeader,
		"@at "+due.UTC().Format(time.RFC3339Nano))
	job.Header.Set(jetstream.ScheduleTargetHeader, "jobs")
	return job
}

// await waits until the server has confirmed all messages.
func await(confirmed []jetstream.PubAckFuture) error {
	for _, one := range confirmed {
		select {
		case <-one.Ok():
		case err := <-one.Err():
			return err
		}
	}
	return nil
}

func offer(batch, count, delay int) error {
	var sent []jetstream.PubAckFuture
	for i := 0; i < count; i++ {
		due := time.Now().Add(time.Duration(delay) * time.Millisecond)
		if batch == 1 {
			if _, err := js.PublishMsg(ctx, schedule(i, due)); err != nil {
				return err
			}
			continue
		}
		one, err := js.PublishMsgAsync(schedule(i, due))
		if err != nil {
			return err
		}
		sent = append(sent, one)
	}
	return await(sent)
}

// consume handles count jobs, each once. It calls begun after the consumer has
// started, and returns when the server has deleted all jobs.
func consume(count int, begun func() error,
	arrived func(i int, now time.Time), options ...jetstream.PullConsumeOpt,
) (time.Duration, error) {
	consumer, err := stream.Consumer(ctx, "workers")
	if err != nil {
		return 0, err
	}
	seen := make([]bool, count)
	left := count
	done := make(chan error, 2*count+1)
	handle := func(job jetstream.Msg) {
		now := time.Now()
		i, err := strconv.Atoi(string(job.Data()[:8]))
		if err != nil || len(job.Data()) != 100 || i >= count || seen[i] {
			done <- errors.New("never offered, or delivered twice")
			return
		}
		seen[i] = true
		arrived(i, now)
		if err = job.Ack(); err != nil {
			done <- err
		}
		if left--; left == 0 {
			done <- nil
		}
	}
	begin := time.Now()
	consuming, err := consumer.Consume(handle, options...)
	if err != nil {
		return 0, err
	}
	defer consuming.Stop()
	if err = begun(); err != nil {
		return 0, err
	}
	select {
	case err = <-done:
	case <-time.After(40 * time.Second):
		err = errors.New("none came")
	}
	for err == nil {
		var info *jetstream.StreamInfo
		info, err = stream.Info(ctx)
		if err == nil && info.State.Msgs == 0 {
			break
		}
		if err == nil && time.Since(begin) > 50*time.Second {
			err = errors.New("jobs are left")
		}
	}
	return time.Since(begin), err
}

func take(batch, count int) (time.Duration, error) {
	var options []jetstream.PullConsumeOpt
	if batch == 1 {
		options = append(options, jetstream.PullMaxMessages(1))
	}
	return consume(count, func() error { return nil }, func(int, time.Time) {},
		options...)
}

// open offers jobs that arrive at a fixed rate, up to 100 at a time.
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
	_, err := consume(count, func() error {
		for i := 0; i < count; {
			time.Sleep(time.Until(arrives(i)))
			var sent []jetstream.PubAckFuture
			for len(sent) < 100 && i < count && time.Until(arrives(i)) <= 0 {
				one, err := js.PublishMsgAsync(schedule(i, due[i]))
				if err != nil {
					return err
				}
				sent = append(sent, one)
				i++
			}
			if err := await(sent); err != nil {
				return err
			}
		}
		return nil
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
		took, err := take(a, b)
		return fmt.Sprint(took.Seconds()), err
	}
	err := offer(a, b, c)
	return fmt.Sprint(time.Since(begin).Seconds()), err
}

func begin(url string) error {
	connection, err := nats.Connect(url)
	if err != nil {
		return err
	}
	js, err = jetstream.New(connection,
		jetstream.WithPublishAsyncMaxPending(100))
	if err != nil {
		return err
	}
	stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:              "JOBS",
		Subjects:          []string{"jobs", "schedules.*"},
		Retention:         jetstream.WorkQueuePolicy,
		AllowMsgSchedules: true,
	})
	if err != nil {
		return err
	}
	_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:       "workers",
		FilterSubject: "jobs",
		AckPolicy:     jetstream.AckExplicitPolicy,
	})
	return err
}

func main() {
	if err := begin(os.Args[1]); err != nil {
		fmt.Println("error:", err)
		return
	}
	info, _ := debug.ReadBuildInfo()
	fmt.Printf("ready NATS %s, nats.go %s, %s: Publish, a consumer that has "+
		"one message at a time; batch 100: PublishMsgAsync with 100 "+
		"unconfirmed, a consumer with defaults; files, default sync\n",
		os.Args[2], nats.Version, info.GoVersion)
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
