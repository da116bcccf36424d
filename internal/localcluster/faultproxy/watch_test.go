package faultproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

const watched = pods + "?watch=true"

// watch begins a watch and reads it until it ends; done then delivers how it ended.
func (w *world) watch(ctx context.Context) (bytes *atomic.Int64, done <-chan answer) {
	w.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+w.proxy.Addr()+watched, nil)
	if err != nil {
		w.Fatal(err)
	}
	got, err := w.client.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	bytes, ended := &atomic.Int64{}, make(chan answer, 1)
	go func() {
		defer got.Body.Close()
		var text strings.Builder
		piece := make([]byte, 1<<10)
		for {
			n, err := got.Body.Read(piece)
			text.Write(piece[:n])
			bytes.Add(int64(n))
			if err == io.EOF {
				err = nil
			} else if err == nil {
				continue
			}
			ended <- answer{got.StatusCode, got.Header, text.String(), err}
			return
		}
	}()
	return bytes, ended
}

// arrive waits until a watch has delivered something.
func (w *world) arrive(bytes *atomic.Int64) {
	w.Helper()
	localtest.Eventually(w, "events arrive", func() error {
		if bytes.Load() == 0 {
			return fmt.Errorf("none of the %d that the server has sent", w.events.Load())
		}
		return nil
	})
}

func TestAWatchGoesOn(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	bytes, done := w.watch(ctx)
	w.arrive(bytes)
	cancel()
	if a := <-done; a.err == nil || !strings.HasPrefix(a.body, eventText) {
		t.Errorf("got %q, %v", a.body, a.err)
	}
}

func TestAFrozenWatch(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.fault(pods, faultproxy.Fault{Watch: faultproxy.WatchFault{FreezeFor: never}})
	bytes, done := w.watch(ctx)
	const sent = 200
	localtest.Eventually(t, "the server sends events", func() error {
		if n := w.events.Load(); n < sent {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
	// Events that the server sent before the freeze may still arrive.
	if n := bytes.Load(); n > int64(len(eventText)) {
		t.Errorf("%d bytes came through a frozen watch", n)
	}
	cancel()
	<-done

	// After the freeze the events arrive, beginning with the first held one.
	w.fault(pods, faultproxy.Fault{Watch: faultproxy.WatchFault{FreezeFor: 20 * time.Millisecond}})
	ctx, cancel = context.WithCancel(t.Context())
	bytes, done = w.watch(ctx)
	w.arrive(bytes)
	cancel()
	if a := <-done; !strings.HasPrefix(a.body, eventText) {
		t.Errorf("got %q", a.body)
	}
}

func TestAWatchEnds(t *testing.T) {
	w := newWorld(t)
	w.fault(pods, faultproxy.Fault{Watch: faultproxy.WatchFault{EndAfter: 50 * time.Millisecond}})
	_, done := w.watch(t.Context())
	if a := <-done; a.err != nil || strings.ReplaceAll(a.body, eventText, "") != "" {
		t.Errorf("it ends with %q, %v", a.body, a.err)
	}
	if w.proxy.Faults()["end the watch"] != 1 {
		t.Errorf("faults: %v", w.proxy.Faults())
	}
}

func TestAWatchIsTorn(t *testing.T) {
	w := newWorld(t)
	w.fault(pods, faultproxy.Fault{Watch: faultproxy.WatchFault{EndAfter: 20 * time.Millisecond, Torn: true}})
	// Half of two events that arrive together is one event: then the watch is torn between events.
	localtest.Eventually(t, "it ends in the middle of an event", func() error {
		_, done := w.watch(t.Context())
		a := <-done
		rest := strings.ReplaceAll(a.body, eventText, "")
		if a.err == nil || !strings.HasPrefix(eventText, rest) {
			t.Fatalf("it ends with %q, %v", rest, a.err)
		}
		if rest == "" {
			return errors.New("it ended after an event")
		}
		return nil
	})
	if w.proxy.Faults()["tear the watch"] == 0 {
		t.Errorf("faults: %v", w.proxy.Faults())
	}
}

// TestAnExpiredWatch checks that a watch in JSON gets the event and one in protobuf the answer 410,
// and that the server has begun neither watch.
func TestAnExpiredWatch(t *testing.T) {
	w := newWorld(t)
	w.fault(pods, faultproxy.Fault{Watch: faultproxy.WatchFault{Expired: true}})
	_, done := w.watch(t.Context())
	a := <-done
	var event struct {
		Type   string
		Object metav1.Status
	}
	if err := json.Unmarshal([]byte(a.body), &event); err != nil || a.err != nil {
		t.Fatal(err, a.err)
	}
	if a.code != http.StatusOK || event.Type != "ERROR" || event.Object.Code != http.StatusGone || event.Object.Reason != metav1.StatusReasonExpired {
		t.Errorf("got %d %s", a.code, a.body)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.proxy.Addr()+watched, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	got, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusGone || w.worked.Load() != 0 {
		t.Errorf("got %d; the server began %d watches", got.StatusCode, w.worked.Load())
	}
}
