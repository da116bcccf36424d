package records

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/malformed"
)

// Keeper reads and writes the trackers of Applications.
type Keeper struct {
	Cache  *PackedCache[oam.ResourceTracker]
	Writer apiwriter.Writer
	Log    *slog.Logger
	Now    func() time.Time
}

// TrackerWrite is the name of the write of a tracker among an Application's writes.
const TrackerWrite = "tracker"

// Load reads an Application's tracker into r, once. It returns false while a tracker exists that
// the watch has not shown. deleted is set if the Application is being deleted.
func (k *Keeper) Load(to *Owner, r *Tracker, deleted bool) (bool, error) {
	if err := r.fault; err != nil {
		r.fault = nil
		return false, err // the watch will show the tracker
	}
	if r.loaded {
		return true, nil
	}
	raw, ok := k.Cache.Get("", TrackerName(to.Key.Namespace, to.Key.Name))
	if !ok {
		if left := r.pause.Left(k.Now()); left > 0 {
			to.WakeAfter(left)
			return false, nil
		}
		r.loaded = true
		return true, nil
	}
	if u := &r.unreadable; u.err != nil && u.version == raw.ResourceVersion && u.deleted == deleted {
		return false, u.err // decompression took long and would fail again
	}
	rt, err := k.Cache.Unpack(raw)
	if err == nil {
		if err = r.replace(rt); err != nil && deleted {
			// The list of objects can be read, and a deletion needs nothing else.
			r.Object, r.Resources, r.packed, err = rt, slices.Clone(rt.Spec.ManagedResources), packed{}, nil
		}
	}
	r.unreadable = unreadableTracker{raw.ResourceVersion, deleted, err}
	r.loaded = err == nil
	return r.loaded, err
}

// Written says of which Application, and of which state of it, a tracker is written.
type Written struct {
	UID        types.UID
	Generation int64
	// Complete means that the newest revision's objects are applied and all others are removed. Until
	// then the tracker keeps the label of the revision before.
	Complete bool
}

// Write creates the tracker or replaces its spec and the label and annotation of its revision.
func (k *Keeper) Write(to *Owner, r *Tracker, w *Writes, of Written) {
	if left := r.pause.Left(k.Now()); left > 0 && !r.Stored() {
		to.WakeAfter(left)
		return
	}
	compression, err := pack(r.packed)
	if err != nil {
		k.Log.Error("an application's record cannot be packed", "application", to.Key, "error", err)
		return
	}
	spec := oam.ResourceTrackerSpec{
		Type: oam.ResourceTrackerTypeVersioned, ApplicationGeneration: of.Generation,
		ManagedResources: r.Resources, Compression: compression,
	}
	if !w.Start(TrackerWrite) {
		return
	}
	r.Dirty = false
	done := func(obj apiwriter.Object, err error) {
		to.Post(func() {
			w.End(TrackerWrite, err)
			rt, _ := obj.(*oam.ResourceTracker)
			switch {
			case apierrors.IsAlreadyExists(err):
				// The watch has not shown the tracker yet.
				r.loaded, r.change = false, Replaced
				r.pause.Failed(k.Now())
			case apierrors.IsNotFound(err):
				r.Object = nil // another client has deleted the tracker: create it again
				k.RetryLater(to, r, err)
			case err != nil:
				r.unwritten = true
				k.RetryLater(to, r, err)
			case rt == nil || malformed.Of(rt) != nil: // the watch will show its content
			case rt.Spec.Compression.Data == compression.Data:
				r.Object, r.unwritten = rt, false
			default:
				// Another manager wrote the tracker a moment ago: continue from its content.
				if r.fault = r.replace(rt); r.fault != nil {
					r.loaded = false
				}
				r.change = Replaced
			}
		})
	}
	meta := apiwriter.Meta{Owner: to.Name, Reason: "application-tracker", StartsWork: true}
	if r.Object == nil {
		created := &oam.ResourceTracker{
			ObjectMeta: metav1.ObjectMeta{
				Name: TrackerName(to.Key.Namespace, to.Key.Name),
				Labels: map[string]string{
					oam.AppNameLabel: to.Key.Name, oam.AppNamespaceLabel: to.Key.Namespace, oam.AppUIDLabel: string(of.UID),
				},
				Annotations: map[string]string{apiwriter.CreatorAnnotation: to.Name},
			},
			Spec: spec,
		}
		if label, version := r.revision(of.Complete); label != "" {
			created.Labels[oam.AppRevisionLabel] = label
			if version != "" {
				created.Annotations[oam.PublishVersionAnnotation] = version
			}
		}
		k.Writer.Create(meta, created, done)
		return
	}
	ops := append([]apiwriter.PatchOp{{Op: "add", Path: "/spec", Value: spec}}, r.revisionPatch(of.Complete)...)
	data, err := json.Marshal(ops)
	if err != nil {
		w.End(TrackerWrite, err)
		return
	}
	k.Writer.Patch(meta, r.Object, types.JSONPatchType, data, done)
}

// revision returns the label and the publishVersion of the revision that a tracker is written of.
// Until the newest revision is complete, the label names the previous one. It is empty if there is no
// revision, or if the revision's name is not valid as a label.
func (r *Tracker) revision(complete bool) (label, publishVersion string) {
	last := r.Latest()
	if last == nil {
		return "", ""
	}
	label = last.Name
	if r.Object != nil && !complete && r.Object.Labels[oam.AppRevisionLabel] != "" {
		label = r.Object.Labels[oam.AppRevisionLabel]
	}
	if len(validation.IsValidLabelValue(label)) > 0 {
		label = ""
	}
	return label, last.PublishVersion
}

// revisionPatch returns the operations that bring a stored tracker's label and annotation up to date.
func (r *Tracker) revisionPatch(complete bool) (ops []apiwriter.PatchOp) {
	set := func(field string, have map[string]string, key, value string) {
		switch {
		case have[key] == value:
		case len(have) == 0:
			ops = append(ops, apiwriter.PatchOp{Op: "add", Path: "/metadata/" + field, Value: map[string]string{key: value}})
		default:
			ops = append(ops, apiwriter.PatchOp{Op: "add", Path: "/metadata/" + field + "/" + strings.ReplaceAll(key, "/", "~1"), Value: value})
		}
	}
	label, version := r.revision(complete)
	set("labels", r.Object.Labels, oam.AppRevisionLabel, label)
	set("annotations", r.Object.Annotations, oam.PublishVersionAnnotation, version)
	return ops
}

// Delete deletes the tracker.
func (k *Keeper) Delete(to *Owner, r *Tracker, w *Writes) {
	if !w.Start(TrackerWrite) {
		return
	}
	k.Writer.Delete(apiwriter.Meta{Owner: to.Name, Reason: "application-tracker"}, r.Object, apiwriter.DeleteOptions{}, func(err error) {
		to.Post(func() {
			w.End(TrackerWrite, err)
			if err != nil {
				k.RetryLater(to, r, err)
				return
			}
			*r = Tracker{loaded: true, change: Deleted}
		})
	})
}

// RetryLater enqueues the Application after a failed write, with backoff. It does nothing for
// ErrStopped.
func (k *Keeper) RetryLater(to *Owner, r *Tracker, err error) {
	if errors.Is(err, apiwriter.ErrStopped) {
		return
	}
	now := k.Now()
	r.pause.Failed(now)
	to.WakeAfter(r.pause.Left(now))
}
