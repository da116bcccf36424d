package supervise

import (
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster"
)

// restarting is a cluster that reports an event while its status is being read, as a component does
// that is restarted then. read gets a value for each call of Status.
type restarting struct {
	s    *supervisor
	told atomic.Bool
	read chan struct{}
}

func (c *restarting) RESTConfig() *rest.Config { return &rest.Config{Host: "https://127.0.0.1:1"} }

func (c *restarting) Status() []localcluster.ComponentStatus {
	if !c.told.Swap(true) {
		c.s.onEvent(localcluster.Event{Component: localcluster.Manager, Kind: localcluster.EventStarting})
	}
	c.read <- struct{}{}
	return []localcluster.ComponentStatus{{Name: localcluster.Manager}}
}

// TestARestartAndARecordDoNotWaitForEachOther hangs if the supervisor reads the cluster's state
// under a lock that its handler of events takes.
func TestARestartAndARecordDoNotWaitForEachOther(t *testing.T) {
	s := &supervisor{files: stateDir{t.TempDir()}, log: slog.New(slog.DiscardHandler), up: json.NewEncoder(io.Discard)}
	cluster := &restarting{s: s, read: make(chan struct{}, 2)}
	s.cluster = cluster
	s.record()
	<-cluster.read
	<-cluster.read // of the event
	s.recording.Lock()
	defer s.recording.Unlock()
	state, err := s.files.read()
	if err != nil || len(state.Components) != 1 || state.Server == "" {
		t.Errorf("state %+v, error %v", state, err)
	}
}

// alone is a writer that notices writes at the same time.
type alone struct {
	writing atomic.Int32
	mixed   atomic.Bool
}

func (w *alone) Write(p []byte) (int, error) {
	if w.writing.Add(1) > 1 {
		w.mixed.Store(true)
	}
	time.Sleep(time.Millisecond) // so that others can write meanwhile
	w.writing.Add(-1)
	return len(p), nil
}

// TestMessagesAreWrittenOneByOne reports events from several goroutines, as the components of a
// cluster do.
func TestMessagesAreWrittenOneByOne(t *testing.T) {
	w := &alone{}
	s := &supervisor{up: json.NewEncoder(w)}
	var components sync.WaitGroup
	for range 20 {
		components.Go(func() { s.tell(message{Event: &localcluster.Event{Kind: localcluster.EventReady}}) })
	}
	components.Wait()
	if w.mixed.Load() {
		t.Error("two messages were written at the same time")
	}
}
