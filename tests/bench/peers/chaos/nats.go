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

	"delayq/peers/schedule"
)

type natsSystem struct {
	connection *nats.Conn
	js         jetstream.JetStream
	stream     jetstream.Stream
	consumer   jetstream.Consumer
}

func (s *natsSystem) connect(port string) (err error) {
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
	s.stream, s.consumer, err = schedule.Queue(s.js)
	return err
}

func (s *natsSystem) when(due int64) (time.Time, int64) {
	return wall(due), due
}

func (s *natsSystem) offer(id int64, payload []byte, due time.Time) error {
	_, err := s.js.PublishMsg(context.Background(),
		schedule.Job(int(id), payload, due), jetstream.WithMsgID(fmt.Sprint(id)))
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
