package observe

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Heartbeats are written in time with a clock, whatever the load is.
var Heartbeats = map[string]bool{"leases.coordination.k8s.io": true, "nodes": true}

// poll is between two looks at a source.
const poll = 50 * time.Millisecond

// Source is an AuditLog or a Watch.
type Source interface {
	// Next returns the events since the last call.
	Next() ([]analyse.Event, error)
	Close() error
}

// Log is what a source has shown since the last Forget. It is not safe for concurrent use.
type Log struct {
	Source Source
	// Events are in the order of their arrival.
	Events []analyse.Event
	// Namespace is set where others use the cluster too: of what is in other namespaces nothing is kept, and Quiet listens to
	// this one alone.
	Namespace string
	// Broken, if set, says why nothing is to be waited for any longer: it ends every wait with its error.
	Broken func() error
	// active is how many there were that Quiet listens to, forgotten ones too.
	active int
}

// Collect takes what the source has.
func (l *Log) Collect() error {
	events, err := l.Source.Next()
	for i := range events {
		in := events[i].Namespace
		if l.Namespace != "" && in != "" && in != l.Namespace {
			continue
		}
		if !Heartbeats[events[i].Resource] && (l.Namespace == "" || in == l.Namespace) {
			l.active++
		}
		l.Events = append(l.Events, events[i])
	}
	return err
}

// Forget begins anew: what has happened so far belongs to no load.
func (l *Log) Forget() { l.Events = nil }

// Until collects until reached says that a condition holds. It says false when the time is up first.
func (l *Log) Until(ctx context.Context, atMost time.Duration, reached func() (bool, error)) (bool, error) {
	deadline := time.Now().Add(atMost)
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if err := l.Collect(); err != nil {
			return false, err
		}
		if l.Broken != nil {
			if err := l.Broken(); err != nil {
				return false, err
			}
		}
		if done, err := reached(); done || err != nil {
			return done, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// quietAtMost is how long Quiet waits.
const quietAtMost = 5 * time.Minute

// Quiet collects until nobody has written for a while, heartbeats aside.
func (l *Log) Quiet(ctx context.Context, quietFor time.Duration) error {
	last, since := -1, time.Now()
	quiet, err := l.Until(ctx, quietAtMost, func() (bool, error) {
		now := time.Now()
		if l.active != last {
			last, since = l.active, now
		}
		return now.Sub(since) >= quietFor, nil
	})
	if err == nil && !quiet {
		return fmt.Errorf("somebody still writes after %s", quietAtMost)
	}
	return err
}

// EventsFile is the name of the file with a run's events.
const EventsFile = "events.jsonl.gz"

// Save writes the events into a file, one a line, compressed.
func (l *Log) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(l.write(f), f.Close())
}

func (l *Log) write(f *os.File) error {
	z := gzip.NewWriter(f)
	encoder := json.NewEncoder(z)
	for i := range l.Events {
		if err := encoder.Encode(&l.Events[i]); err != nil {
			return err
		}
	}
	return z.Close()
}

// Close ends the source.
func (l *Log) Close() error {
	if l.Source == nil {
		return nil
	}
	return l.Source.Close()
}
