package controller

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/malformed"
)

// trackerKeeper reads and writes the trackers of Applications.
type trackerKeeper struct {
	Cache  *held[oam.ResourceTracker]
	Writer apiwriter.Writer
	Log    *slog.Logger
	Now    func() time.Time
}

// trackerWrite is the name of the write of a tracker among an Application's writes.
const trackerWrite = "tracker"

// load reads an Application's tracker into r, once. It returns false while a tracker exists that
// the watch has not shown. deleted is set if the Application is being deleted.
func (k *trackerKeeper) load(to *owner, r *trackerState, deleted bool) (bool, error) {
	if err := r.fault; err != nil {
		r.fault = nil
		return false, err // the watch will show the tracker
	}
	if r.loaded {
		return true, nil
	}
	raw, ok := k.Cache.Get("", trackerName(to.key.Namespace, to.key.Name))
	if !ok {
		if left := r.pause.Left(k.Now()); left > 0 {
			to.wakeAfter(left)
			return false, nil
		}
		r.loaded = true
		return true, nil
	}
	if u := &r.unreadable; u.err != nil && u.version == raw.ResourceVersion && u.deleted == deleted {
		return false, u.err // decompressing it took long and would fail again
	}
	rt, err := k.Cache.open(raw)
	if err == nil {
		if err = r.replace(rt); err != nil && deleted {
			// The list of objects can be read, and a deletion needs nothing else.
			r.object, r.resources, r.packed, err = rt, slices.Clone(rt.Spec.ManagedResources), packed{}, nil
		}
	}
	r.unreadable = unreadableTracker{raw.ResourceVersion, deleted, err}
	r.loaded = err == nil
	return r.loaded, err
}

// write creates the tracker or replaces its spec. uid is the Application's UID.
func (k *trackerKeeper) write(to *owner, r *trackerState, w *writes, uid types.UID, generation int64) {
	if left := r.pause.Left(k.Now()); left > 0 && r.object == nil {
		to.wakeAfter(left)
		return
	}
	compression, err := pack(r.packed)
	if err != nil {
		k.Log.Error("an application's record cannot be packed", "application", to.key, "error", err)
		return
	}
	spec := oam.ResourceTrackerSpec{
		Type: oam.ResourceTrackerTypeRoot, ApplicationGeneration: generation,
		ManagedResources: r.resources, Compression: compression,
	}
	if !w.start(trackerWrite) {
		return
	}
	r.dirty = false
	done := func(obj apiwriter.Object, err error) {
		to.post(func() {
			w.end(trackerWrite, err)
			rt, _ := obj.(*oam.ResourceTracker)
			switch {
			case apierrors.IsAlreadyExists(err):
				// The watch has not shown the tracker yet.
				r.loaded, r.news = false, trackerReplaced
				r.pause.Refused(k.Now())
			case err != nil:
				k.retryLater(to, r, err)
			case rt == nil || malformed.Of(rt) != nil: // the watch will show what it says now
			case rt.Spec.Compression.Data == compression.Data:
				r.object = rt
			default:
				// Another manager wrote the tracker a moment ago: continue from its content.
				if r.fault = r.replace(rt); r.fault != nil {
					r.loaded = false
				}
				r.news = trackerReplaced
			}
		})
	}
	meta := apiwriter.Meta{Owner: to.name, Reason: "application-tracker", Begins: true}
	if r.object == nil {
		k.Writer.Create(meta, &oam.ResourceTracker{
			ObjectMeta: metav1.ObjectMeta{
				Name: trackerName(to.key.Namespace, to.key.Name),
				Labels: map[string]string{
					oam.AppNameLabel: to.key.Name, oam.AppNamespaceLabel: to.key.Namespace, oam.AppUIDLabel: string(uid),
				},
				Annotations: map[string]string{apiwriter.CreatorAnnotation: to.name},
			},
			Spec: spec,
		}, done)
		return
	}
	data, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec", "value": spec}})
	if err != nil {
		w.end(trackerWrite, err)
		return
	}
	k.Writer.Patch(meta, r.object, types.JSONPatchType, data, done)
}

// delete deletes the tracker.
func (k *trackerKeeper) delete(to *owner, r *trackerState, w *writes) {
	if !w.start(trackerWrite) {
		return
	}
	k.Writer.Delete(apiwriter.Meta{Owner: to.name, Reason: "application-tracker"}, r.object, apiwriter.DeleteOptions{}, func(err error) {
		to.post(func() {
			w.end(trackerWrite, err)
			if err != nil {
				k.retryLater(to, r, err)
				return
			}
			*r = trackerState{loaded: true, news: trackerDeleted}
		})
	})
}

// retryLater asks for another turn after a failed write, with backoff.
func (k *trackerKeeper) retryLater(to *owner, r *trackerState, err error) {
	if errors.Is(err, apiwriter.ErrStopped) {
		return
	}
	now := k.Now()
	r.pause.Refused(now)
	to.wakeAfter(r.pause.Left(now))
}
