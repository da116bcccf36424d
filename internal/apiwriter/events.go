package apiwriter

import (
	"cmp"
	"container/list"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/reference"

	"lockstep.dev/lockstep/internal/clip"
)

const (
	// eventInterval is the minimum time between two writes of one event.
	eventInterval = 30 * time.Second
	// eventsKept is the maximum number of events remembered, so that further equal events are
	// counted into them.
	eventsKept = 4096
	// eventMessageMax is the server's limit for the message of an event, in bytes.
	eventMessageMax = 1024
)

type eventKey struct {
	about                 types.UID
	kind, reason, message string
}

// eventLog remembers the most recent events.
type eventLog struct {
	byKey  map[eventKey]*list.Element
	recent list.List // of *eventEntry, most recent first
	queued int       // event writes that are queued or in flight
}

// eventEntry is one event and the number of times it occurred.
type eventEntry struct {
	boundTerm // fence and term of the most recent call
	key       eventKey
	event     *corev1.Event
	busy      bool // being written, or waiting for eventInterval to pass
	count     int32
	last      time.Time
	stored    int32 // the count stored by the server; 0 before the event is created
}

// Event implements Writer.
func (w *W) Event(about Object, eventType, reason, message string) {
	now := time.Now()
	message = clip.Text(message, eventMessageMax)
	w.mu.Lock()
	defer w.mu.Unlock()
	term, err := w.term("event/" + about.GetNamespace() + "/" + about.GetName())
	if err != nil || w.stopped {
		return
	}
	log := &w.events
	key := eventKey{about.GetUID(), eventType, reason, message}
	if el, ok := log.byKey[key]; ok {
		log.recent.MoveToFront(el)
		e := el.Value.(*eventEntry)
		e.boundTerm = term
		e.count++
		e.last = now
		w.metrics.coalesced.Inc()
		if !e.busy {
			w.writeEvent(e)
		}
		return
	}
	if log.queued >= w.cfg.MaxEvents {
		w.metrics.dropped.Inc()
		return
	}
	ref, err := reference.GetReference(w.cfg.Scheme, about)
	if err != nil {
		w.metrics.dropped.Inc()
		w.log.Warn("Event about an unknown kind of object", "err", err)
		return
	}
	e := &eventEntry{boundTerm: term, key: key, count: 1, last: now, event: newEvent(ref, key, w.cfg.Component, now)}
	if log.byKey == nil {
		log.byKey = make(map[eventKey]*list.Element)
	}
	log.byKey[key] = log.recent.PushFront(e)
	if log.recent.Len() > eventsKept {
		oldest := log.recent.Remove(log.recent.Back()).(*eventEntry)
		delete(log.byKey, oldest.key)
	}
	w.writeEvent(e)
}

func newEvent(ref *corev1.ObjectReference, key eventKey, component string, now time.Time) *corev1.Event {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s", key.about, key.kind, key.reason, key.message)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(ref.Namespace, metav1.NamespaceDefault),
			// The time makes the name unique among equal events of successive manager processes.
			Name:        fmt.Sprintf("%s.%x%08x", ref.Name, h.Sum64(), uint32(now.Unix())),
			Annotations: map[string]string{CreatorAnnotation: component},
		},
		InvolvedObject: *ref,
		Type:           key.kind, Reason: key.reason, Message: key.message,
		Source:         corev1.EventSource{Component: component},
		FirstTimestamp: metav1.NewTime(now), LastTimestamp: metav1.NewTime(now), Count: 1,
		ReportingController: component,
	}
}

// writeEvent writes the current count of e: the first write creates the event, later writes patch
// its count. The caller holds mu.
func (w *core) writeEvent(e *eventEntry) {
	e.busy = true
	count := e.count
	x := &write{
		boundTerm: e.boundTerm, class: ClassEvent, owner: string(e.key.about), reason: "event", obj: e.event,
		kind: eventKind, name: types.NamespacedName{Namespace: e.event.Namespace, Name: e.event.Name},
	}
	if e.stored == 0 {
		x.verb = verbCreate
		e.event.Count, e.event.LastTimestamp = count, metav1.NewTime(e.last)
	} else {
		x.verb = verbPatch
		data, err := json.Marshal(map[string]any{"count": count, "lastTimestamp": metav1.NewTime(e.last)})
		if err != nil {
			panic(err) // an int and a time always encode
		}
		x.patch = patch{types.MergePatchType, data}
	}
	w.events.queued++
	x.done = func(_ Object, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events.queued--
		if err != nil {
			w.metrics.dropped.Inc()
			if !errors.Is(err, ErrStopped) && !errors.Is(err, ErrQueueFull) {
				w.log.Debug("Event refused", "event", x.name, "err", err)
			}
			e.stored = 0 // the event may have expired: the next write creates a new one
		} else {
			e.stored = count
		}
		if w.stopped {
			return
		}
		w.after(eventInterval, func() {
			e.busy = false
			if e.count > e.stored && e.stored > 0 {
				w.writeEvent(e)
			}
		})
	}
	w.add(x)
}

var eventKind = kind{corev1.SchemeGroupVersion.WithKind("Event"), "events"}
