package controller

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

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/unpack"
)

// revision is one state of an application.
type revision struct {
	Name           string               `json:"name"`
	Number         int64                `json:"number"`
	Hash           string               `json:"hash"`
	PublishVersion string               `json:"publishVersion,omitempty"`
	Created        metav1.Time          `json:"created"`
	Spec           *oam.ApplicationSpec `json:"spec"`
	// Definitions are those it was rendered with: kind and name to hash.
	Definitions map[string]string `json:"definitions,omitempty"`
	// Published says that there is an ApplicationRevision of it.
	Published bool `json:"published,omitempty"`
}

// packed is what a tracker keeps packed.
type packed struct {
	// Revisions, oldest first.
	Revisions []revision `json:"revisions,omitempty"`
	// Applied are the objects as they were last applied, by Ref.String of their kind, without those that are secret.
	Applied map[string]json.RawMessage `json:"applied,omitempty"`
	// Flow is what is remembered of the workflow, where there is something.
	Flow *flowRecord `json:"flow,omitempty"`
}

// trackerName is the name of an application's tracker. Namespaces have no dots, so no two applications share one.
func trackerName(namespace, name string) string { return namespace + "." + name }

// sameJSON reports whether two texts are the same when they are packed: a tracker has them compact, with <, > and & escaped.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// refKey names an object in packed.
func refKey(r plan.Ref) string {
	key := r.GVK.GroupVersion().String() + "/" + r.GVK.Kind + "/" + r.Namespace + "/" + r.Name
	if r.Cluster != "" {
		return r.Cluster + ":" + key
	}
	return key
}

func refOf(m *oam.ManagedResource) plan.Ref {
	return plan.Ref{Cluster: m.Cluster, GVK: schema.FromAPIVersionAndKind(m.APIVersion, m.Kind), Namespace: m.Namespace, Name: m.Name}
}

func managed(r *plan.Resource) oam.ManagedResource {
	m := oam.ManagedResource{Component: r.Component, Trait: r.Trait, Resource: r.Output}
	m.APIVersion, m.Kind = r.GVK.ToAPIVersionAndKind()
	m.Cluster, m.Namespace, m.Name = r.Cluster, r.Namespace, r.Name
	return m
}

// isSecret says whether an object stays out of the tracker's copies.
func isSecret(gvk schema.GroupVersionKind) bool { return gvk.Group == "" && gvk.Kind == "Secret" }

func unpackRecord(c oam.Compression) (packed, error) {
	var p packed
	data, err := inflate(c, unpack.Tracker)
	if err != nil || len(data) == 0 {
		return p, err
	}
	return p, json.Unmarshal(data, &p)
}

// inflate takes JSON out of its packing, up to a limit.
func inflate(c oam.Compression, limit unpack.Limit) ([]byte, error) {
	switch {
	case c.Type == oam.Uncompressed || c.Data == "":
		return []byte(c.Data), nil
	case c.Type != oam.Gzip:
		return nil, fmt.Errorf("packed as %q", c.Type)
	}
	return unpack.Base64Gzip(c.Data, limit)
}

// packers are kept, for one takes 800 KB to make.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

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
	return oam.Compression{Type: oam.Gzip, Data: base64.StdEncoding.EncodeToString(b.Bytes())}, nil
}

// record is a tracker in memory: what it says, or what it will say when the write under way has ended.
type record struct {
	object    *oam.ResourceTracker // as last seen or written; nil before there is one
	resources []oam.ManagedResource
	packed
}

func newRecord(rt *oam.ResourceTracker) (record, error) {
	p, err := unpackRecord(rt.Spec.Compression)
	if err != nil {
		return record{}, err
	}
	return record{object: rt, resources: slices.Clone(rt.Spec.ManagedResources), packed: p}, nil
}

// load takes up what an earlier manager has left, once.
func (c *Controller) load(a *app) error {
	if a.loaded {
		return nil
	}
	if raw, ok := c.trackers.Get("", trackerName(a.key.Namespace, a.key.Name)); ok {
		goes := c.deleted(a.key)
		if u := &a.unreadable; u.err != nil && u.version == raw.ResourceVersion && u.goes == goes {
			return u.err // to unpack it took long, and would again
		}
		rt, err := c.trackers.open(raw)
		var r record
		if err == nil {
			if r, err = newRecord(rt); err != nil && goes {
				// What there is to remove can be read, and that is what is needed.
				r, err = record{object: rt, resources: slices.Clone(rt.Spec.ManagedResources)}, nil
			}
		}
		a.unreadable = badRecord{raw.ResourceVersion, goes, err}
		if err != nil {
			return err
		}
		a.record = r
	}
	a.loaded = true
	a.lives()
	return nil
}

// badRecord is the version of a record that could not be read, whether its application was being deleted then, and why.
type badRecord struct {
	version string
	goes    bool
	err     error
}

// noRecord says on an application that its record cannot be read. What it has made is not known, so nothing is made, changed or
// removed for it; a change of the tracker brings it back. One that is being deleted can go.
func (c *Controller) noRecord(a *app, err error) {
	c.log.Error("an application's record cannot be read", "application", a.key, "error", err)
	o, _ := c.open(a)
	if o == nil {
		return
	}
	err = fmt.Errorf("its record, the ResourceTracker %s, cannot be read: %w. What it has deployed stays as it is until an administrator restores the record",
		trackerName(a.key.Namespace, a.key.Name), err)
	if o.DeletionTimestamp != nil {
		c.letGo(a, o)
		return
	}
	a.plan, a.planned, a.planErr = nil, "", err
	c.report(a, o, progress{})
}

func (r *record) latest() *revision {
	if len(r.Revisions) == 0 {
		return nil
	}
	return &r.Revisions[len(r.Revisions)-1]
}

// componentType is the type that a component had last.
func (r *record) componentType(name string) string {
	for i := len(r.Revisions) - 1; i >= 0; i-- {
		for j := range r.Revisions[i].Spec.Components {
			if c := &r.Revisions[i].Spec.Components[j]; c.Name == name {
				return c.Type
			}
		}
	}
	return ""
}

func (r *record) has(ref plan.Ref) bool {
	return slices.ContainsFunc(r.resources, func(m oam.ManagedResource) bool { return refOf(&m) == ref })
}

// Revision is one state that an application had.
type Revision struct {
	Name           string               `json:"name"`
	PublishVersion string               `json:"publishVersion,omitempty"`
	Hash           string               `json:"hash"`
	Created        metav1.Time          `json:"created"`
	Spec           *oam.ApplicationSpec `json:"spec"`
}

// Revisions are the last states of an application that its tracker keeps, oldest first.
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
