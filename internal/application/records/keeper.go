package records

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
)

// Keeper reads and writes the trackers of Applications.
type Keeper struct {
	Cache  Cache
	Writer apiwriter.Writer
	Log    *slog.Logger
	Now    func() time.Time
}

// Cache is the watch of trackers, with the indexes of TrackerIndexes.
type Cache interface {
	Get(namespace, name string) (*kubeclient.Raw, bool)
	ByIndex(index, value string) []*kubeclient.Raw
	Unpack(*kubeclient.Raw) (*oam.ResourceTracker, error)
}

// TrackerWrite is the name of the write of a tracker among an Application's writes.
const TrackerWrite = "tracker"

// Load reads an Application's record into r, once, and again if another manager has written a newer
// one. It returns false while a tracker exists that the watch has not shown. deleted is set if the
// Application is being deleted.
func (k *Keeper) Load(to *Owner, r *Tracker, deleted bool) (bool, error) {
	if err := r.fault; err != nil {
		r.fault = nil
		return false, err // the watch will show the tracker
	}
	records, _ := k.own(to, r)
	if r.loaded && r.behind(records) {
		r.loaded, r.change = false, Replaced
	}
	if r.loaded {
		return true, nil
	}
	if len(records) == 0 {
		if left := r.pause.Left(k.Now()); left > 0 {
			to.WakeAfter(left)
			return false, nil
		}
		r.loaded = true
		return true, nil
	}
	raw := records[0]
	if u := &r.unreadable; u.err != nil && u.version == raw.ResourceVersion && u.deleted == deleted {
		return false, u.err // decompression took long and would fail again
	}
	rt, err := k.Cache.Unpack(raw)
	if err == nil {
		if err = r.replace(rt); err != nil && deleted {
			// The list of objects can be read, and a deletion needs nothing else.
			r.hold(rt)
			r.packed, err = packed{}, nil
		}
	}
	if err == nil {
		err = k.join(r, records)
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

// Write creates the tracker of the Application's present state, or replaces its spec and the label and
// annotation of its revision. The tracker of an earlier state stays until Settle deletes it.
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
	target, name, number := r.Object, r.name, r.number
	if target == nil || !r.current(of.Generation) {
		var there *kubeclient.Raw
		number++
		if name, there = k.place(to, r, of.Generation, number); there != nil {
			target = trackerOf(there)
		} else {
			target = nil
		}
	}
	r.Dirty, r.name, r.number = false, name, number
	done := func(obj apiwriter.Object, err error) {
		to.Post(func() {
			w.End(TrackerWrite, err)
			rt, _ := obj.(*oam.ResourceTracker)
			if err == nil && rt != nil && malformed.Of(rt) == nil {
				if n, _ := oam.RecordNumber(rt); n != number {
					err = apierrors.NewAlreadyExists(schema.GroupResource{Group: oam.GroupVersion.Group, Resource: "resourcetrackers"}, name)
				}
			}
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
	labels, annotations := r.marks(to, of)
	if target == nil {
		drop := func(_, value string) bool { return value == "" }
		maps.DeleteFunc(labels, drop)
		maps.DeleteFunc(annotations, drop)
		k.Writer.Create(meta, &oam.ResourceTracker{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations}, Spec: spec}, done)
		return
	}
	ops := []apiwriter.PatchOp{{Op: "add", Path: "/spec", Value: spec}}
	ops = append(ops, setAll("labels", target.Labels, labels)...)
	ops = append(ops, setAll("annotations", target.Annotations, annotations)...)
	if slices.Contains(target.Finalizers, oam.TrackerFinalizer) { // it remained from an earlier state
		ops = append(ops, apiwriter.PatchOp{Op: "add", Path: "/metadata/finalizers", Value: others(target.Finalizers)})
	}
	data, err := json.Marshal(ops)
	if err != nil {
		w.End(TrackerWrite, err)
		return
	}
	k.Writer.Patch(meta, target, types.JSONPatchType, data, done)
}

// marks returns the labels and annotations of the tracker that is written. Empty values are of those
// that it does not have.
func (r *Tracker) marks(to *Owner, of Written) (labels, annotations map[string]string) {
	revision, version := r.revision(of.Complete)
	labels = map[string]string{
		oam.AppNameLabel: to.Key.Name, oam.AppNamespaceLabel: to.Key.Namespace, oam.AppUIDLabel: string(of.UID), oam.AppRevisionLabel: revision,
	}
	annotations = map[string]string{apiwriter.CreatorAnnotation: to.Name, oam.PublishVersionAnnotation: version}
	if r.number > 0 {
		annotations[oam.RecordAnnotation] = strconv.FormatInt(r.number, 10)
	}
	return labels, annotations
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

// setAll returns the operations that give a map of metadata the values that it lacks. An empty value
// of a key that exists replaces the value.
func setAll(field string, have, want map[string]string) []apiwriter.PatchOp {
	lacks := maps.Clone(want)
	maps.DeleteFunc(lacks, func(key, value string) bool { return have[key] == value })
	if len(have) == 0 && len(lacks) > 0 {
		return []apiwriter.PatchOp{{Op: "add", Path: "/metadata/" + field, Value: lacks}}
	}
	var ops []apiwriter.PatchOp
	for _, key := range slices.Sorted(maps.Keys(lacks)) {
		ops = append(ops, apiwriter.PatchOp{Op: "add", Path: "/metadata/" + field + "/" + strings.ReplaceAll(key, "/", "~1"), Value: lacks[key]})
	}
	return ops
}

// Delete deletes the current tracker. Call it when there is no other (DeleteOthers).
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
			*r = Tracker{loaded: true, change: Deleted, handled: map[types.UID]string{r.Object.UID: gone}}
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
