package records

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/unpack"
)

// Stored is one deployed state of an Application's spec.
type Stored struct {
	Name           string               `json:"name"`
	Number         int64                `json:"number"`
	Hash           string               `json:"hash"`
	PublishVersion string               `json:"publishVersion,omitempty"`
	Created        metav1.Time          `json:"created"`
	Spec           *oam.ApplicationSpec `json:"spec"`
	// Definitions has the hash of each definition that the revision was rendered with, by kind and
	// name.
	Definitions map[string]string `json:"definitions,omitempty"`
	// Given are the labels and annotations that policies give the Application.
	Given *plan.Given `json:"given,omitempty"`
	// New is set if this manager has made the revision: no earlier manager has published it.
	New bool `json:"-"`
}

// packed is the part of a Tracker that is stored compressed.
type packed struct {
	// Revisions are the last revisions, oldest first.
	Revisions []Stored `json:"revisions,omitempty"`
	// Applied has the objects as last applied, by RefKey. Secrets are left out.
	Applied map[string]json.RawMessage `json:"applied,omitempty"`
	// OnDelete has, by RefKey, the objects that a rule keeps until the Application is deleted. Objects
	// that a rule keeps for ever have SkipGC in the list of objects.
	OnDelete map[string]bool `json:"onDelete,omitempty"`
	// Flow is the recorded state of the workflow, if there is any.
	Flow *Flow `json:"flow,omitempty"`
}

// SameJSON reports whether two JSON texts are equal as a tracker stores them: compact, with <, >
// and & escaped.
func SameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// RefKey returns the key of an object in a tracker: APIVERSION/KIND/NAMESPACE/NAME, with CLUSTER:
// before it for a managed cluster.
func RefKey(r plan.Ref) string {
	key := r.GVK.GroupVersion().String() + "/" + r.GVK.Kind + "/" + r.Namespace + "/" + r.Name
	if r.Cluster != "" {
		return r.Cluster + ":" + key
	}
	return key
}

// RefOf returns the Ref of an object in a tracker.
func RefOf(m *oam.ManagedResource) plan.Ref {
	return plan.Ref{Cluster: m.Cluster, GVK: schema.FromAPIVersionAndKind(m.APIVersion, m.Kind), Namespace: m.Namespace, Name: m.Name}
}

// ManagedOf returns the entry of a resource in a tracker.
func ManagedOf(r *plan.Resource) oam.ManagedResource {
	m := oam.ManagedResource{Component: r.Component, Trait: r.Trait, Resource: r.Output, SkipGC: r.GC == plan.GCNever}
	m.APIVersion, m.Kind = r.GVK.ToAPIVersionAndKind()
	m.Cluster, m.Namespace, m.Name = r.Cluster, r.Namespace, r.Name
	return m
}

// IsSecret reports whether objects of this kind are never copied into the tracker.
func IsSecret(gvk schema.GroupVersionKind) bool { return gvk.Group == "" && gvk.Kind == "Secret" }

// The compressed part of a tracker is in spec.compression.data, without spec.compression.type. Other
// clients of trackers decompress data only if there is a type, and keep it when they write a tracker
// back. So they see the plain list of objects.

// expandedType is the type of a compressed part that Expand has decompressed. It is never stored.
const expandedType oam.CompressionType = "expanded"

// unpackRecord decompresses the compressed part of a tracker.
func unpackRecord(c oam.Compression) (packed, error) {
	var p packed
	data, err := inflate(c, unpack.Tracker)
	if err != nil || len(data) == 0 {
		return p, err
	}
	return p, json.Unmarshal(data, &p)
}

// inflate returns the JSON of a compressed part, up to a limit.
func inflate(c oam.Compression, limit unpack.Limit) ([]byte, error) {
	switch {
	case c.Type == expandedType || c.Data == "":
		return []byte(c.Data), nil
	case c.Type != oam.Uncompressed && c.Type != oam.Gzip:
		return nil, fmt.Errorf("packed as %q", c.Type)
	}
	return unpack.Base64Gzip(c.Data, limit)
}

// packers pools gzip writers, because creating one takes 800 KB.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// pack compresses the compressed part of a tracker.
func pack(p packed) (oam.Compression, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return oam.Compression{}, err
	}
	var b bytes.Buffer
	z := packers.Get().(*gzip.Writer)
	defer packers.Put(z)
	z.Reset(&b)
	if _, err := z.Write(data); err != nil {
		return oam.Compression{}, err
	}
	if err := z.Close(); err != nil {
		return oam.Compression{}, err
	}
	return oam.Compression{Data: base64.StdEncoding.EncodeToString(b.Bytes())}, nil
}

// Tracker is the in-memory content of an Application's tracker: as stored, or as it will be
// when the write under way has ended.
type Tracker struct {
	Object    *oam.ResourceTracker // as last seen or written; nil if not created yet
	Resources []oam.ManagedResource
	packed
	// Dirty is set if the tracker does not yet have the latest revision.
	Dirty bool
	// Unseen has, by RefKey, the objects that this manager has named and not seen yet, of those that
	// are applied once.
	Unseen map[string]bool

	loaded bool
	// name and number are those of the tracker as last loaded, or as last sent to the API server.
	name   string
	number int64
	// handled has the versions, by UID, at which trackers were deleted or changed that are not the
	// current one.
	handled map[types.UID]string
	// unwritten is set if the last write failed: the stored tracker lacks what is here.
	unwritten  bool
	unreadable unreadableTracker
	// fault says why content that another manager has written cannot be read.
	fault  error
	pause  controlloop.Backoff // after a failed write
	change Change
}

// Stored reports whether the stored tracker names all Resources, as far as writes have been
// answered.
func (r *Tracker) Stored() bool { return r.Object != nil && !r.unwritten }

// Change is a change of a tracker other than by a successful write of this manager.
type Change uint8

const (
	unchanged Change = iota
	// Replaced means that the tracker has other content than before.
	Replaced
	// Deleted means that the Application was removed. If an Application with this key exists again,
	// it is a new one and inherits nothing of the old one's plan, steps or status.
	Deleted
)

// TakeChange returns the last change since the last call.
func (r *Tracker) TakeChange() Change {
	change := r.change
	r.change = unchanged
	return change
}

// NameObjects adds the objects that the tracker does not name yet, and reports whether the stored
// tracker names all of them already.
func (r *Tracker) NameObjects(resources []plan.Resource) bool {
	stored := r.Stored()
	for i := range resources {
		x := &resources[i]
		if x.ReadOnly {
			continue
		}
		if !r.Has(x.Ref) {
			stored = false
			if x.AppliedOnce() {
				if r.Unseen == nil {
					r.Unseen = map[string]bool{}
				}
				r.Unseen[RefKey(x.Ref)] = true
			}
			r.Resources = append(r.Resources[:len(r.Resources):len(r.Resources)], ManagedOf(x))
			if x.GC == plan.GCOnAppDelete {
				if r.OnDelete == nil {
					r.OnDelete = map[string]bool{}
				}
				r.OnDelete[RefKey(x.Ref)] = true
			}
		}
	}
	if stored {
		return true
	}
	// A new object has no earlier applied state: three-way merges start from what is applied now.
	if r.Applied == nil {
		r.Applied = map[string]json.RawMessage{}
	}
	for i := range resources {
		x := &resources[i]
		if _, known := r.Applied[RefKey(x.Ref)]; !known && !IsSecret(x.GVK) && !x.ReadOnly {
			r.Applied[RefKey(x.Ref)] = x.JSON
		}
	}
	return false
}

// replace replaces the content of r by that of a stored tracker. If rt cannot be read, nothing
// changes.
func (r *Tracker) replace(rt *oam.ResourceTracker) error {
	p, err := unpackRecord(rt.Spec.Compression)
	if err != nil {
		return err
	}
	r.hold(rt)
	r.packed = p
	return nil
}

// hold makes a stored tracker the current one, with its plain list of objects.
func (r *Tracker) hold(rt *oam.ResourceTracker) {
	r.Object, r.Resources, r.unwritten = rt, slices.Clone(rt.Spec.ManagedResources), false
	r.name = rt.Name
	r.number, _ = oam.RecordNumber(rt)
}

// unreadableTracker is the version of a tracker that could not be read, whether the Application was
// being deleted then, and the error.
type unreadableTracker struct {
	version string
	deleted bool
	err     error
}

// Latest returns the newest revision, or nil.
func (r *Tracker) Latest() *Stored {
	if len(r.Revisions) == 0 {
		return nil
	}
	return &r.Revisions[len(r.Revisions)-1]
}

// ComponentType returns the type of a component in the newest revision that has the component.
func (r *Tracker) ComponentType(name string) string {
	for i := len(r.Revisions) - 1; i >= 0; i-- {
		for j := range r.Revisions[i].Spec.Components {
			if c := &r.Revisions[i].Spec.Components[j]; c.Name == name {
				return c.Type
			}
		}
	}
	return ""
}

// Strategy returns the strategy of the rule by which an object was last applied, or an empty one.
func (r *Tracker) Strategy(m *oam.ManagedResource) plan.GCStrategy {
	switch {
	case m.SkipGC:
		return plan.GCNever
	case r.OnDelete[RefKey(RefOf(m))]:
		return plan.GCOnAppDelete
	}
	return ""
}

// Has reports whether the tracker names an object.
func (r *Tracker) Has(ref plan.Ref) bool {
	return slices.ContainsFunc(r.Resources, func(m oam.ManagedResource) bool { return RefOf(&m) == ref })
}

// Revision is one state of an Application that its tracker keeps.
type Revision struct {
	Name           string               `json:"name"`
	PublishVersion string               `json:"publishVersion,omitempty"`
	Hash           string               `json:"hash"`
	Created        metav1.Time          `json:"created"`
	Spec           *oam.ApplicationSpec `json:"spec"`
}

// Revisions returns the Application's last states that its tracker keeps, oldest first.
func Revisions(rt *oam.ResourceTracker) ([]Revision, error) {
	p, err := unpackRecord(rt.Spec.Compression)
	if err != nil {
		return nil, fmt.Errorf("tracker %s: %w", rt.Name, err)
	}
	out := make([]Revision, len(p.Revisions))
	for i, r := range p.Revisions {
		out[i] = Revision{Name: r.Name, PublishVersion: r.PublishVersion, Hash: r.Hash, Created: r.Created, Spec: r.Spec}
	}
	return out, nil
}
