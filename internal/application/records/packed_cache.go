package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/dictcodec"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/rawjson"
	"lockstep.dev/lockstep/internal/unpack"
)

// PackedCache is a watch of objects that are many and mostly idle. It keeps their metadata decoded
// and the rest compressed until Unpack is called.
type PackedCache[T any] struct {
	*informer.Informer[*kubeclient.Raw]
	packer dictcodec.Codec
	read   func(text []byte, r *kubeclient.Raw) (*T, error)
}

// NewPackedCache returns a watch of a resource, with indexes if there are any. note gets an object's JSON without metadata. It
// returns the JSON to keep and a summary, not nil, that is available without unpacking the object.
// read decodes the kept JSON and takes the metadata from r.
func NewPackedCache[T any](client rest.Interface, resource string, indexes map[string]func(*kubeclient.Raw) []string, note func(text []byte) (keep []byte, note any), read func(text []byte, r *kubeclient.Raw) (*T, error)) *PackedCache[T] {
	k := &PackedCache[T]{read: read}
	k.Informer = informer.New(client, resource, informer.Options[*kubeclient.Raw]{Indexes: indexes, Trim: func(r *kubeclient.Raw) {
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
		r.JSON = k.packer.Pack(text)
	}})
	return k
}

// Unpack decodes the whole object. If it returns an error, the object may be incomplete.
func (k *PackedCache[T]) Unpack(r *kubeclient.Raw) (*T, error) {
	text, err := k.packer.Unpack(r.JSON)
	o, failed := k.read(text, r)
	return o, errors.Join(err, failed)
}

// ReadApplication decodes an Application. A status that cannot be decoded is left empty, and will
// be overwritten. If the spec cannot be decoded, ReadApplication returns an Application without a
// spec, and an error.
func ReadApplication(text []byte, r *kubeclient.Raw) (*oam.Application, error) {
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

// ReadTracker decodes a ResourceTracker.
func ReadTracker(text []byte, r *kubeclient.Raw) (*oam.ResourceTracker, error) {
	o := &oam.ResourceTracker{}
	if err := kjson.Unmarshal(text, o); err != nil {
		return nil, fmt.Errorf("tracker %s: %w", r.Name, err)
	}
	o.ObjectMeta = r.ObjectMeta
	return o, nil
}

// Summary is the part of an Application that is available without unpacking it.
type Summary struct {
	Phase               oam.ApplicationPhase
	Suspend, Terminated bool // of its workflow, if it has one
	Workflow            bool
}

// SummaryOf returns the summary of an Application, or an empty one.
func SummaryOf(r *kubeclient.Raw) Summary { g, _ := r.Note.(Summary); return g }

// Summarize reads the Summary of an Application from its JSON. It keeps the JSON as it is.
func Summarize(text []byte) ([]byte, any) {
	status, err := rawjson.Value(text, "status")
	if err != nil || status == nil {
		return text, Summary{}
	}
	var s struct {
		Phase    oam.ApplicationPhase `json:"status"`
		Workflow *struct {
			Suspend    bool `json:"suspend"`
			Terminated bool `json:"terminated"`
		} `json:"workflow"`
	}
	if err := json.Unmarshal(status, &s); err != nil {
		return text, Summary{}
	}
	g := Summary{Phase: phaseNames[s.Phase]}
	if g.Phase == "" {
		g.Phase = s.Phase
	}
	if s.Workflow != nil {
		g.Workflow, g.Suspend, g.Terminated = true, s.Workflow.Suspend, s.Workflow.Terminated
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

// expanded is the empty summary of a tracker. A tracker must be unpacked to read it.
type expanded struct{}

// Expand replaces a tracker's compressed part by plain JSON. The compressed part resembles that of
// no other tracker, so package dictcodec could not compress it further.
func Expand(text []byte) ([]byte, any) {
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
	t.Spec.Compression = oam.Compression{Type: expandedType, Data: string(plain)}
	out, err := json.Marshal(map[string]any{"apiVersion": t.APIVersion, "kind": t.Kind, "spec": t.Spec})
	if err != nil {
		return text, expanded{}
	}
	return out, expanded{}
}

// Specs iterates over the specs of all Applications and those that Applications with a
// publishVersion are deployed with, with an error for each that cannot be read.
func Specs(applications *PackedCache[oam.Application], trackers *PackedCache[oam.ResourceTracker]) iter.Seq2[*oam.ApplicationSpec, error] {
	return func(yield func(*oam.ApplicationSpec, error) bool) {
		for _, raw := range applications.List() {
			o, err := applications.Unpack(raw)
			if !yield(&o.Spec, err) {
				return
			}
			if raw.Annotations[oam.PublishVersionAnnotation] == "" {
				continue
			}
			rt, found := RecordOf(trackers, types.NamespacedName{Namespace: raw.Namespace, Name: raw.Name})
			if !found {
				continue
			}
			var deployed *oam.ApplicationSpec
			unpacked, err := trackers.Unpack(rt)
			if err == nil {
				var revisions []Revision
				if revisions, err = Revisions(unpacked); len(revisions) > 0 {
					deployed = revisions[len(revisions)-1].Spec
				}
			}
			if !yield(deployed, err) {
				return
			}
		}
	}
}
