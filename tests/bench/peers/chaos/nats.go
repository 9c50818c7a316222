// NATS as a peer of bench-chaos.
//
// A job is a scheduled message (header Nats-Schedule) with a subject of its
// own. When it is due by the server's clock, the server stores its payload
// under the subject "jobs". A failed publish is repeated with the same
// Nats-Msg-Id, so the server stores the job once (within two minutes, by
// default). The stream is a work queue in files. AckWait, the lease, has the
// default, 30 s. An ack waits for its confirmation, and is repeated until there
// is one. A client reconnects as often as necessary (by default 60 times).
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type natsSystem struct {
	connection *nats.Conn
	js         jetstream.JetStream
	stream     jetstream.Stream
	consumer   jetstream.Consumer
}

func (s *natsSystem) connect(port string) (err error) {
	ctx := context.Background()
	if s.connection == nil {
		s.connection, err = nats.Connect("nats://127.0.0.1:"+port,
			nats.MaxReconnects(-1))
		if err != nil {
			return err
		}
		if s.js, err = jetstream.New(s.connection); err != nil {
			return err
		}
	}
	s.stream, err = s.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:              "JOBS",
		Subjects:          []string{"jobs", "schedules.*"},
		Retention:         jetstream.WorkQueuePolicy,
		AllowMsgSchedules: true,
	})
	if err != nil {
		return err
	}
	s.consumer, err = s.stream.CreateOrUpdateConsumer(ctx,
		jetstream.ConsumerConfig{
			Durable:       "workers",
			FilterSubject: "jobs",
			AckPolicy:     jetstream.AckExplicitPolicy,
		})
	return err
}

func (s *natsSystem) when(due int64) (time.Time, int64) {
	return wall(due), due
}

// offer doesn't use jetstream.WithScheduleAt, which drops the fraction of a
// second.
func (s *natsSystem) offer(id int64, payload []byte, due time.Time) error {
	job := nats.NewMsg(fmt.Sprintf("schedules.%d", id))
	job.Data = payload
	job.Header.Set(jetstream.ScheduleHeader,
		"@at "+due.UTC().Format(time.RFC3339Nano))
	job.Header.Set(jetstream.ScheduleTargetHeader, "jobs")
	_, err := s.js.PublishMsg(context.Background(), job,
		jetstream.WithMsgID(fmt.Sprint(id)))
	return err
}

// work begins 8 consumers, each of which has one message at a time.
func (s *natsSystem) work() error {
	for thread := 0; thread < 8; thread++ {
		_, err := s.consumer.Consume(func(job jetstream.Msg) {
			if err := handle(job.Data()); err != nil {
				job.TermWithReason(err.Error())
				return
			}
			repeat(func() error { return job.DoubleAck(context.Background()) })
		}, jetstream.PullMaxMessages(1))
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *natsSystem) left() (left, dead int64, err error) {
	info, err := s.stream.Info(context.Background())
	if err != nil {
		return
	}
	return int64(info.State.Msgs), 0, nil
}

func main() {
	run(&natsSystem{})
}
