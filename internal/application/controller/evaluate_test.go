package controller

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWhatOverrunsKeepsItsPlace(t *testing.T) {
	e := newEvaluators(10*time.Millisecond, 1)
	end := make(chan struct{})
	endless := func() error { <-end; return nil }
	for range latePerNamespaceMax {
		if err := e.do("bad", endless); err == nil || !strings.Contains(err.Error(), "took more than 10ms") {
			t.Fatal(err)
		}
	}
	// The namespace waits for its own; others do not.
	if err := e.do("bad", endless); !errors.Is(err, errBusy) {
		t.Fatal(err)
	}
	if err := e.do("good", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	// When every place is taken all wait, and no goroutine is added.
	for _, ns := range []string{"b", "c", "d", "e", "f", "g", "h"} {
		_ = e.do(ns, endless)
	}
	if n := len(e.places); n != cap(e.places) {
		t.Fatalf("%d of %d places are taken", n, cap(e.places))
	}
	if err := e.do("good", func() error { return nil }); !errors.Is(err, errBusy) {
		t.Fatal(err)
	}
	close(end)
	for range cap(e.places) {
		e.places <- struct{}{} // each is given back
	}
	for range cap(e.places) {
		<-e.places
	}
	if err := e.do("bad", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.late) != 0 {
		t.Errorf("late: %v", e.late)
	}
}

func TestAnEvaluationThatPanicsIsAnError(t *testing.T) {
	e := newEvaluators(time.Minute, 1)
	if err := e.do("ns", func() error { panic("no") }); err == nil || !strings.Contains(err.Error(), "broke down: no") {
		t.Error(err)
	}
	if len(e.places) != 0 && e.do("ns", func() error { return nil }) != nil {
		t.Error("its place is lost")
	}
}
