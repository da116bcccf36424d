package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/rawjson"
	"lockstep.dev/lockstep/internal/unpack"
)

// held is a watch of objects that are many and mostly at rest: it keeps their metadata decoded and
// the rest compressed until open is called.
type held[T any] struct {
	*informer.Informer[*kubeclient.Raw]
	packer alike
	read   func(text []byte, r *kubeclient.Raw) (*T, error)
}

// newHeld returns a watch of a resource. note gets an object's JSON without metadata; it returns
// the JSON to keep and a summary, not nil, that is available without opening the object. read
// decodes the kept JSON and takes the metadata from r.
func newHeld[T any](client rest.Interface, resource string, note func(text []byte) (keep []byte, note any), read func(text []byte, r *kubeclient.Raw) (*T, error)) *held[T] {
	k := &held[T]{read: read}
	k.Informer = informer.New(client, resource, informer.Options[*kubeclient.Raw]{Trim: func(r *kubeclient.Raw) {
		if r.Note != nil {
			return // an informer may trim an object twice
		}
		text, err := kubeclient.CutMembers(nil, r.JSON, func(out []byte, name string, _ []byte) ([]byte, bool, error) {
			return out, name == "metadata", nil
		})
		if err != nil {
			text = []byte("{}") // cannot happen: the metadata was read from the same JSON
		}
		text, r.Note = note(text)
		r.JSON = k.packer.pack(text)
	}})
	return k
}

// open decodes the whole object. If it returns an error, the object may be incomplete.
func (k *held[T]) open(r *kubeclient.Raw) (*T, error) {
	text, err := k.packer.unpack(r.JSON)
	o, failed := k.read(text, r)
	return o, errors.Join(err, failed)
}

// readApplication decodes an Application. A status that cannot be decoded is left empty, and will
// be overwritten. If the spec cannot be decoded, readApplication returns an Application without a
// spec, and an error.
func readApplication(text []byte, r *kubeclient.Raw) (*oam.Application, error) {
	o := &oam.Application{}
	var failed error
	if kjson.Unmarshal(text, o) != nil {
		*o = oam.Application{}
		var parts struct{ Spec, Status json.RawMessage }
		failed = json.Unmarshal(text, &parts)
		if err := kjson.Unmarshal(parts.Spec, &o.Spec); failed == nil && err != nil {
			o.Spec, failed = oam.ApplicationSpec{}, fmt.Errorf("the spec cannot be read: %w", err)
			if fault := malformed.Find(parts.Spec, reflect.TypeFor[oam.ApplicationSpec]()); fault != nil {
				fault.Path = "spec." + fault.Path
				failed = &malformed.Error{Kind: "Application", Namespace: r.Namespace, Name: r.Name, Fault: fault.Error()}
			}
		}
		if err := kjson.Unmarshal(parts.Status, &o.Status); err != nil {
			o.Status = oam.ApplicationStatus{}
		}
	}
	o.ObjectMeta = r.ObjectMeta
	return o, failed
}

func readTracker(text []byte, r *kubeclient.Raw) (*oam.ResourceTracker, error) {
	o := &oam.ResourceTracker{}
	if err := kjson.Unmarshal(text, o); err != nil {
		return nil, fmt.Errorf("tracker %s: %w", r.Name, err)
	}
	o.ObjectMeta = r.ObjectMeta
	return o, nil
}

// glance is what is available of an Application without opening it.
type glance struct {
	phase               oam.ApplicationPhase
	suspend, terminated bool // of its workflow, when it has one
	workflow            bool
}

func glanceOf(r *kubeclient.Raw) glance { g, _ := r.Note.(glance); return g }

// glanceAt reads the glance of an Application from its JSON.
func glanceAt(text []byte) ([]byte, any) {
	status, err := rawjson.Value(text, "status")
	if err != nil || status == nil {
		return text, glance{}
	}
	var s struct {
		Phase    oam.ApplicationPhase `json:"status"`
		Workflow *struct {
			Suspend    bool `json:"suspend"`
			Terminated bool `json:"terminated"`
		} `json:"workflow"`
	}
	if err := json.Unmarshal(status, &s); err != nil {
		return text, glance{}
	}
	g := glance{phase: phaseNames[s.Phase]}
	if g.phase == "" {
		g.phase = s.Phase
	}
	if s.Workflow != nil {
		g.workflow, g.suspend, g.terminated = true, s.Workflow.Suspend, s.Workflow.Terminated
	}
	return text, g
}

// phaseNames interns the usual phases, so that each string is in memory once.
var phaseNames = map[oam.ApplicationPhase]oam.ApplicationPhase{
	oam.PhaseRunning: oam.PhaseRunning, oam.PhaseRunningWorkflow: oam.PhaseRunningWorkflow, oam.PhaseUnhealthy: oam.PhaseUnhealthy,
}

// expandedMax is the maximum decompressed size, in bytes, of a tracker's compressed part that is
// decompressed to be compressed again together with similar objects.
const expandedMax = 1 << 20

// expanded is the empty summary of a tracker: everything else needs open.
type expanded struct{}

// expand replaces a tracker's compressed part by plain JSON. Compressed, it resembles no other
// tracker, and alike could not compress it further.
func expand(text []byte) ([]byte, any) {
	var t oam.ResourceTracker
	if err := kjson.Unmarshal(text, &t); err != nil {
		return text, expanded{}
	}
	limit := unpack.Tracker
	limit.Bytes = expandedMax
	plain, err := inflate(t.Spec.Compression, limit)
	if err != nil || len(plain) > expandedMax {
		return text, expanded{}
	}
	t.Spec.Compression = oam.Compression{Data: string(plain)}
	out, err := json.Marshal(map[string]any{"apiVersion": t.APIVersion, "kind": t.Kind, "spec": t.Spec})
	if err != nil {
		return text, expanded{}
	}
	return out, expanded{}
}
