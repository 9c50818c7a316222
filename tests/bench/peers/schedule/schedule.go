// Package schedule makes a delay queue of NATS, for both benches.
package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Queue returns the stream and its consumer, and creates them if necessary. All
// that is not named here is as by default: files, AckWait 30 s.
func Queue(js jetstream.JetStream) (jetstream.Stream, jetstream.Consumer,
	error) {
	ctx := context.Background()
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:              "JOBS",
		Subjects:          []string{"jobs", "schedules.*"},
		Retention:         jetstream.WorkQueuePolicy,
		AllowMsgSchedules: true,
	})
	if err != nil {
		return nil, nil, err
	}
	consumer, err := stream.CreateOrUpdateConsumer(ctx,
		jetstream.ConsumerConfig{
			Durable:       "workers",
			FilterSubject: "jobs",
			AckPolicy:     jetstream.AckExplicitPolicy,
		})
	return stream, consumer, err
}

// Job returns a job as a scheduled message. The header is set here, since
// jetstream.WithScheduleAt drops the fraction of a second.
func Job(id int, payload []byte, due time.Time) *nats.Msg {
	job := nats.NewMsg(fmt.Sprintf("schedules.%d", id))
	job.Data = payload
	job.Header.Set(jetstream.ScheduleHeader,
		"@at "+due.UTC().Format(time.RFC3339Nano))
	job.Header.Set(jetstream.ScheduleTargetHeader, "jobs")
	return job
}
