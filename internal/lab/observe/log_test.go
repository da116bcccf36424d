package observe_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
)

// script is a source that returns one list of events after the other, and then nothing more.
type script [][]analyse.Event

func (*script) Lost() string { return "" }

func (s *script) Next() ([]analyse.Event, error) {
	if len(*s) == 0 {
		return nil, nil
	}
	next := (*s)[0]
	*s = (*s)[1:]
	return next, nil
}

func (s *script) Close() error { return nil }

func TestQuietIsWhenOnlyHeartbeatsAreWritten(t *testing.T) {
	pod, lease := analyse.Event{Resource: "pods"}, analyse.Event{Resource: "leases.coordination.k8s.io"}
	source := script{{pod}, {pod, lease}, {lease}, {lease}, {lease}}
	log := observe.Log{Source: &source}
	if err := log.Quiet(t.Context(), time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	if len(log.Events) != 4 {
		t.Errorf("quiet after %d events", len(log.Events))
	}
	log.Forget()
	reached, err := log.Until(t.Context(), time.Minute, func() (bool, error) { return len(log.Events) == 2, nil })
	if !reached || err != nil {
		t.Errorf("reached %v, %v", reached, err)
	}
}

// chatter is a source of a cluster in which some client always writes.
type chatter struct{ event analyse.Event }

func (chatter) Lost() string { return "" }

func (c chatter) Next() ([]analyse.Event, error) { return []analyse.Event{c.event}, nil }
func (c chatter) Close() error                   { return nil }

func TestOthersDoNotBreakTheQuietOfANamespace(t *testing.T) {
	log := observe.Log{Source: chatter{analyse.Event{Resource: "pods", Namespace: "elsewhere"}}, Namespace: "here"}
	if err := log.Quiet(t.Context(), time.Nanosecond); err != nil || len(log.Events) > 0 {
		t.Errorf("%v, %d events", err, len(log.Events))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	log = observe.Log{Source: chatter{analyse.Event{Resource: "pods", Namespace: "here"}}, Namespace: "here"}
	if err := log.Quiet(ctx, time.Nanosecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("quiet while the namespace is written to: %v", err)
	}
	log = observe.Log{Source: chatter{analyse.Event{Resource: "queues.scheduling.volcano.sh"}}, Namespace: "here"}
	if err := log.Quiet(t.Context(), time.Nanosecond); err != nil || len(log.Events) == 0 {
		t.Errorf("%v, %d events of objects without a namespace", err, len(log.Events))
	}
}

func TestUntilEndsWithItsContextItsTimeAndItsCondition(t *testing.T) {
	log := observe.Log{Source: &script{}}
	never := func() (bool, error) { return false, nil }
	if reached, err := log.Until(t.Context(), 0, never); reached || err != nil {
		t.Errorf("the time is up: %v, %v", reached, err)
	}
	broken := errors.New("the manager has ended")
	log.Broken = func() error { return broken }
	if reached, err := log.Until(t.Context(), time.Minute, never); reached || !errors.Is(err, broken) {
		t.Errorf("nothing is to be waited for: %v, %v", reached, err)
	}
	log.Broken = func() error { return nil }
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	if _, err := log.Until(ctx, time.Minute, never); !errors.Is(err, why) {
		t.Errorf("the context is done: %v", err)
	}
	if _, err := log.Until(t.Context(), time.Minute, func() (bool, error) { return false, why }); !errors.Is(err, why) {
		t.Errorf("the condition failed: %v", err)
	}
}
