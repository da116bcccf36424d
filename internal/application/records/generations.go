package records

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Clients expect a tracker for each generation of an Application. The record is in one of them, the
// current one:
//
//	generation 1    shop-v1-prod  record 1
//	generation 2    shop-v1-prod  record 1 ──▶ shop-v2-prod  record 2, names all objects of record 1
//	all is done                                shop-v2-prod  record 2
//	                shop-v1-prod  remains, without a record, if keepLegacyResource keeps objects of it
//
// A tracker that remains has a finalizer. Its objects are deleted when a client deletes it.

// ByApplication is the index of trackers by Application, as namespace/name.
const ByApplication = "application"

// TrackerIndexes returns the indexes of a cache of trackers. A tracker that has lost its labels is
// found by its creator.
func TrackerIndexes() map[string]func(*kubeclient.Raw) []string {
	return map[string]func(*kubeclient.Raw) []string{ByApplication: func(r *kubeclient.Raw) []string {
		of := []string{types.NamespacedName{Namespace: r.Labels[oam.AppNamespaceLabel], Name: r.Labels[oam.AppNameLabel]}.String()}
		if by, ok := strings.CutPrefix(r.Annotations[apiwriter.CreatorAnnotation], "application/"); ok && by != of[0] {
			of = append(of, by)
		}
		return of
	}}
}

// newest compares two trackers with records, the newest first.
func newest[T metav1.Object](a, b T) int {
	x, _ := oam.RecordNumber(a)
	y, _ := oam.RecordNumber(b)
	return cmp.Or(cmp.Compare(y, x), cmp.Compare(a.GetName(), b.GetName()))
}

// RecordOf returns the tracker that has an Application's record, if it exists.
func RecordOf(trackers *PackedCache[oam.ResourceTracker], app types.NamespacedName) (*kubeclient.Raw, bool) {
	all := withRecords(trackers.ByIndex(ByApplication, app.String()))
	if len(all) == 0 {
		return nil, false
	}
	return all[0], true
}

// withRecords returns the trackers that have records, the newest first.
func withRecords(list []*kubeclient.Raw) []*kubeclient.Raw {
	list = slices.DeleteFunc(slices.Clone(list), func(raw *kubeclient.Raw) bool {
		_, has := oam.RecordNumber(raw)
		return !has
	})
	slices.SortFunc(list, newest[*kubeclient.Raw])
	return list
}

// remains reports whether a tracker without a record is one that the manager has left for clients to
// delete. Trackers of other controllers are left alone.
func remains(raw *kubeclient.Raw, of string) bool {
	_, has := oam.RecordNumber(raw)
	return !has && raw.Annotations[apiwriter.CreatorAnnotation] == of
}

// gone is the version in Tracker.handled of a tracker that is deleted, whatever the watch shows.
const gone = "gone"

// wasHandled reports whether the watch has yet to show the deletion or the change of a tracker.
func (r *Tracker) wasHandled(raw *kubeclient.Raw) bool {
	at, handled := r.handled[raw.UID]
	return handled && (at == gone || at == raw.ResourceVersion)
}

// own returns an Application's trackers as the watch shows them, without those whose deletion or
// change the watch has yet to show: those with records, the newest first, and those that remain.
func (k *Keeper) own(to *Owner, r *Tracker) (records, remaining []*kubeclient.Raw) {
	list := slices.DeleteFunc(slices.Clone(k.Cache.ByIndex(ByApplication, to.Key.String())), r.wasHandled)
	remaining = slices.DeleteFunc(slices.Clone(list), func(raw *kubeclient.Raw) bool { return !remains(raw, to.Name) })
	return withRecords(list), remaining
}

// behind reports whether another tracker has a record that is not older than the loaded one: another
// manager wrote it, and the watch had not shown it before.
func (r *Tracker) behind(records []*kubeclient.Raw) bool {
	return slices.ContainsFunc(records, func(raw *kubeclient.Raw) bool {
		n, _ := oam.RecordNumber(raw)
		return raw.Name != r.name && n >= r.number && n > 0
	})
}

// join adds the objects of other trackers that have a record with the same number as the loaded one,
// of which neither knows.
func (k *Keeper) join(r *Tracker, records []*kubeclient.Raw) error {
	for _, raw := range records {
		if n, _ := oam.RecordNumber(raw); raw.Name == r.name || n < r.number || n == 0 {
			continue
		}
		rt, err := k.Cache.Unpack(raw)
		if err != nil {
			return err
		}
		for _, m := range rt.Spec.ManagedResources {
			if !r.Has(RefOf(&m)) {
				r.Resources, r.unwritten = append(r.Resources, m), true
			}
		}
	}
	return nil
}

// current reports whether the stored tracker belongs to the Application's present state. As for
// clients, it does if it has the same publishVersion or, without one, the same generation.
func (r *Tracker) current(generation int64) bool {
	if last := r.Latest(); last != nil && last.PublishVersion != "" {
		return r.Object.Annotations[oam.PublishVersionAnnotation] == last.PublishVersion
	}
	return r.Object.Spec.ApplicationGeneration == generation
}

// place returns the name for another tracker, and the Application's own tracker that has the name
// already, if there is one. The name is what clients expect, APP-vGENERATION-NAMESPACE or
// APP-PUBLISHVERSION-NAMESPACE. That may also be the name of a tracker of an Application in another
// namespace (shop-v1-a of shop in a, and of shop with the publishVersion v1 in a), or of one that
// another controller has left. Then it is NAMESPACE.APP.rNUMBER, which no other tracker has:
// namespaces have no dots, and after the last dot of the other names there is a hyphen.
func (k *Keeper) place(to *Owner, r *Tracker, generation, number int64) (name string, there *kubeclient.Raw) {
	versions := []string{fmt.Sprintf("v%d", generation)}
	if last := r.Latest(); last != nil && last.PublishVersion != "" {
		versions = append([]string{last.PublishVersion}, versions...)
	}
	for _, v := range versions {
		name := to.Key.Name + "-" + v + "-" + to.Key.Namespace
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			continue
		}
		raw, taken := k.Cache.Get("", name)
		if !taken || r.wasHandled(raw) {
			return name, nil
		}
		if raw.Annotations[apiwriter.CreatorAnnotation] == to.Name && raw.DeletionTimestamp == nil {
			return name, raw
		}
	}
	return fmt.Sprintf("%s.%s.r%d", to.Key.Namespace, to.Key.Name, number), nil
}

// Condemned returns the objects of trackers that a client deletes, by RefKey. They are to be deleted,
// unless they belong to the Application's present state.
func (k *Keeper) Condemned(to *Owner, r *Tracker) map[string]bool {
	var out map[string]bool
	_, remaining := k.own(to, r)
	for _, raw := range remaining {
		if raw.DeletionTimestamp == nil {
			continue
		}
		rt, err := k.Cache.Unpack(raw)
		if err != nil {
			k.Log.Error("a tracker cannot be read", "tracker", raw.Name, "error", err)
			continue
		}
		if out == nil {
			out = map[string]bool{}
		}
		for _, m := range rt.Spec.ManagedResources {
			out[RefKey(RefOf(&m))] = true
		}
	}
	return out
}

// Unsettled reports whether the trackers of earlier states have yet to be deleted or changed.
func (k *Keeper) Unsettled(to *Owner, r *Tracker) bool {
	records, remaining := k.own(to, r)
	return slices.ContainsFunc(records, func(raw *kubeclient.Raw) bool { return raw.Name != r.name && !held(raw) }) ||
		slices.ContainsFunc(remaining, func(raw *kubeclient.Raw) bool { return raw.DeletionTimestamp != nil && !held(raw) })
}

// Settle deletes the trackers of earlier states, once the current one is stored and all that its
// state asks for is done. A tracker with objects that are kept although they have left the
// Application's spec remains, with a list of only these. kept has them, by RefKey.
func (k *Keeper) Settle(to *Owner, r *Tracker, w *Writes, kept map[string]bool) {
	if !r.Stored() || w.InFlight(TrackerWrite) {
		return
	}
	records, remaining := k.own(to, r)
	if len(records) < 2 && len(remaining) == 0 {
		return
	}
	listed := map[string]bool{}
	for _, raw := range remaining {
		rt, err := k.Cache.Unpack(raw)
		if err != nil {
			k.Log.Error("a tracker cannot be read", "tracker", raw.Name, "error", err)
			continue
		}
		n := 0
		for _, m := range rt.Spec.ManagedResources {
			if key := RefKey(RefOf(&m)); kept[key] {
				n++
				listed[key] = true
			}
		}
		if n == 0 {
			k.drop(to, r, w, raw)
		}
	}
	for _, raw := range slices.Backward(records) { // the oldest first
		if raw.Name == r.name {
			continue
		}
		var stays []oam.ManagedResource
		if len(kept) > 0 {
			rt, err := k.Cache.Unpack(raw)
			if err != nil {
				k.Log.Error("a tracker cannot be read", "tracker", raw.Name, "error", err)
				continue
			}
			stays = slices.DeleteFunc(slices.Clone(rt.Spec.ManagedResources), func(m oam.ManagedResource) bool {
				key := RefKey(RefOf(&m))
				return !kept[key] || listed[key]
			})
		}
		if len(stays) == 0 {
			k.drop(to, r, w, raw)
			continue
		}
		for i := range stays {
			listed[RefKey(RefOf(&stays[i]))] = true
		}
		k.remain(to, r, w, raw, stays)
	}
}

// DeleteOthers deletes all trackers of an Application but the current one. It returns true while
// there are any.
func (k *Keeper) DeleteOthers(to *Owner, r *Tracker, w *Writes) bool {
	records, remaining := k.own(to, r)
	all := slices.DeleteFunc(append(records, remaining...), func(raw *kubeclient.Raw) bool {
		return r.Object != nil && raw.Name == r.Object.Name || held(raw)
	})
	for _, raw := range all {
		k.drop(to, r, w, raw)
	}
	return len(all) > 0
}

// held reports whether only the finalizers of others keep a tracker that is being deleted.
func held(raw *kubeclient.Raw) bool {
	return raw.DeletionTimestamp != nil && !slices.Contains(raw.Finalizers, oam.TrackerFinalizer)
}

// others returns the finalizers without TrackerFinalizer.
func others(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == oam.TrackerFinalizer })
}

// drop deletes a tracker that is not the current one. One with a finalizer loses it when the watch
// shows that it is being deleted.
func (k *Keeper) drop(to *Owner, r *Tracker, w *Writes, raw *kubeclient.Raw) {
	name := TrackerWrite + "/" + raw.Name
	if raw.DeletionTimestamp != nil {
		if !held(raw) {
			k.patchOther(to, r, w, raw, []apiwriter.PatchOp{{Op: "test", Path: "/metadata/finalizers", Value: raw.Finalizers},
				{Op: "add", Path: "/metadata/finalizers", Value: others(raw.Finalizers)}})
		}
		return
	}
	if !w.Start(name) {
		return
	}
	k.Writer.Delete(apiwriter.Meta{Owner: to.Name, Reason: "application-tracker"}, trackerOf(raw), apiwriter.DeleteOptions{}, func(err error) {
		k.handled(to, r, w, raw, err)
	})
}

// remain takes the record out of a tracker that is not the current one.
func (k *Keeper) remain(to *Owner, r *Tracker, w *Writes, raw *kubeclient.Raw, stays []oam.ManagedResource) {
	rt, err := k.Cache.Unpack(raw)
	if err != nil {
		return // Settle has said so
	}
	spec := oam.ResourceTrackerSpec{Type: oam.ResourceTrackerTypeVersioned, ApplicationGeneration: rt.Spec.ApplicationGeneration, ManagedResources: stays}
	ops := []apiwriter.PatchOp{{Op: "add", Path: "/spec", Value: spec}, {Op: "add", Path: "/metadata/finalizers", Value: append(slices.Clone(raw.Finalizers), oam.TrackerFinalizer)}}
	ops = append(ops, setAll("annotations", raw.Annotations, map[string]string{oam.RecordAnnotation: "", apiwriter.CreatorAnnotation: to.Name})...)
	k.patchOther(to, r, w, raw, ops)
}

func (k *Keeper) patchOther(to *Owner, r *Tracker, w *Writes, raw *kubeclient.Raw, ops []apiwriter.PatchOp) {
	name := TrackerWrite + "/" + raw.Name
	data, err := json.Marshal(ops)
	if err != nil || !w.Start(name) {
		return
	}
	k.Writer.Patch(apiwriter.Meta{Owner: to.Name, Reason: "application-tracker"}, trackerOf(raw), types.JSONPatchType, data, func(_ apiwriter.Object, err error) {
		k.handled(to, r, w, raw, err)
	})
}

// handled notes the answer to a write of a tracker that is not the current one. It is called outside
// of turns.
func (k *Keeper) handled(to *Owner, r *Tracker, w *Writes, raw *kubeclient.Raw, err error) {
	to.Post(func() {
		if w.End(TrackerWrite+"/"+raw.Name, nil); err != nil {
			k.RetryLater(to, r, err)
			return
		}
		if r.handled == nil {
			r.handled = map[types.UID]string{}
		}
		r.handled[raw.UID] = raw.ResourceVersion
	})
}

// trackerOf returns the metadata of a tracker, for writes about it.
func trackerOf(raw *kubeclient.Raw) *oam.ResourceTracker {
	return &oam.ResourceTracker{ObjectMeta: raw.ObjectMeta}
}
