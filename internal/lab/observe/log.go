package observe

import (
	"context"
	"fmt"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Heartbeats are resources that are written at fixed intervals, whatever the load.
var Heartbeats = map[string]bool{"leases.coordination.k8s.io": true, "nodes": true}

// poll is the interval at which a source is read.
const poll = 50 * time.Millisecond

// Source is an AuditLog or a Watch.
type Source interface {
	// Next returns the events since the last call.
	Next() ([]analyse.Event, error)
	// Lost says which events may be missing; empty if none is.
	Lost() string
	Close() error
}

// Log collects the events of a source since the last Forget. It is not safe for concurrent use.
type Log struct {
	Source Source
	// Events are in the order of arrival.
	Events []analyse.Event
	// Namespace, if set, is the namespace of the measurement in a cluster that other clients use
	// too. Events of other namespaces are dropped, and Quiet considers this namespace alone.
	Namespace string
	// Broken, if set, returns the reason why further waiting is pointless. Its error ends every
	// wait.
	Broken func() error
	// active counts the events that Quiet considers, including forgotten ones.
	active int
}

// Collect takes the pending events from the source.
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

// Lost says which events of the source may be missing; empty if none is.
func (l *Log) Lost() string {
	if l.Source == nil {
		return ""
	}
	return l.Source.Lost()
}

// Forget drops the events so far: they belong to no load.
func (l *Log) Forget() { l.Events = nil }

// Until collects events until reached returns true. It returns false if atMost expires first.
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

// quietAtMost bounds the wait of Quiet.
const quietAtMost = 5 * time.Minute

// Quiet collects events until there were no writes for quietFor, not counting heartbeats.
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

// Close closes the source.
func (l *Log) Close() error {
	if l.Source == nil {
		return nil
	}
	return l.Source.Close()
}
