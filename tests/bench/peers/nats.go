// NATS as a peer.
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
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delayq/peers/schedule"
)

type natsSystem struct {
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
}

// offerAll offers jobs, and waits until the server has confirmed them.
func (s *natsSystem) offerAll(from, to int, due func(i int) time.Time) error {
	var sent []jetstream.PubAckFuture
	for i := from; i < to; i++ {
		one, err := s.js.PublishMsgAsync(schedule.Job(i, payload(i), due(i)))
		if err != nil {
			return err
		}
		sent = append(sent, one)
	}
	for _, one := range sent {
		select {
		case <-one.Ok():
		case err := <-one.Err():
			return err
		}
	}
	return nil
}

func (s *natsSystem) offer(batch, count int, delay time.Duration) error {
	due := func(int) time.Time { return time.Now().Add(delay) }
	if batch > 1 {
		return s.offerAll(0, count, due)
	}
	for i := 0; i < count; i++ {
		_, err := s.js.PublishMsg(context.Background(),
			schedule.Job(i, payload(i), due(i)))
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *natsSystem) arrive(due []time.Time,
	arrivals func() (from, to int)) error {
	for from, to := arrivals(); from < to; from, to = arrivals() {
		err := s.offerAll(from, to, func(i int) time.Time { return due[i] })
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *natsSystem) consume(batch int, begun func() error,
	handle func(payload []byte), done <-chan error) (time.Duration, error) {
	var options []jetstream.PullConsumeOpt
	if batch == 1 {
		options = append(options, jetstream.PullMaxMessages(1))
	}
	begin := time.Now()
	consuming, err := s.consumer.Consume(func(job jetstream.Msg) {
		handle(job.Data())
		job.Ack() // if this fails, the job is left
	}, options...)
	if err != nil {
		return 0, err
	}
	defer consuming.Stop()
	if err = begun(); err == nil {
		err = <-done
	}
	for err == nil {
		var info *jetstream.StreamInfo
		info, err = s.stream.Info(context.Background())
		if err == nil && info.State.Msgs == 0 {
			break
		}
		if err == nil && time.Since(begin) > 50*time.Second {
			err = errors.New("jobs are left")
		}
	}
	return time.Since(begin), err
}

func begin(url string) (s natsSystem, err error) {
	connection, err := nats.Connect(url)
	if err != nil {
		return
	}
	s.js, err = jetstream.New(connection,
		jetstream.WithPublishAsyncMaxPending(100))
	if err != nil {
		return
	}
	s.stream, s.consumer, err = schedule.Queue(s.js)
	return
}

func main() {
	s, err := begin(os.Args[1])
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	serve(&s, fmt.Sprintf("NATS %s, nats.go %s, %s: Publish, a consumer that "+
		"has one message at a time; batch 100: PublishMsgAsync with 100 "+
		"unconfirmed, a consumer with defaults; files, default sync",
		os.Args[2], nats.Version, runtime.Version()))
}
