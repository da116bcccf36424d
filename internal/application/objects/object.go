package objects

import (
	"encoding/json"
	"errors"
	"hash/maphash"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/dictcodec"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/rawjson"
)

// Object is a managed object as last seen.
type Object struct {
	Uid        types.UID
	Version    uint64
	generation int64
	Deleting   bool
	// Unobserved is set while the controller of this kind of object has not observed the object.
	Unobserved bool
	// Owner is the Application that the labels name.
	Owner      types.NamespacedName
	RenderHash string
	// raw is the object as JSON, without managedFields. For an object of an idle Application, raw
	// is compressed by packer.
	raw    []byte
	packer *dictcodec.Codec
	// Content is a hash of raw without its status, resourceVersion and generation. Objects of equal
	// content may have different hashes if they come from different encoders.
	Content uint64
}

// JSON returns the object as JSON, without managedFields. The caller must not change the bytes.
func (o *Object) JSON() []byte {
	if o.packer == nil {
		return o.raw
	}
	raw, _ := o.packer.Unpack(o.raw) // cannot fail: Pack made these bytes
	return raw
}

// NewObject returns u as a stored object. It removes u's managed fields.
func NewObject(u apiwriter.Object) (*Object, error) {
	o := &Object{Uid: u.GetUID(), generation: u.GetGeneration(), Deleting: u.GetDeletionTimestamp() != nil, Owner: OwnerOf(u.GetLabels())}
	o.RenderHash = u.GetLabels()[oam.RenderHashLabel]
	var err error
	if o.Version, err = strconv.ParseUint(u.GetResourceVersion(), 10, 64); err != nil {
		return nil, err
	}
	if r, ok := u.(*kubeclient.Raw); ok {
		o.raw = r.JSON
	} else {
		u.SetManagedFields(nil)
		if o.raw, err = json.Marshal(u); err != nil {
			return nil, err
		}
	}
	o.Content, err = contentHash(o.raw)
	return o, err
}

// isWorkload reports whether a controller observes objects of this kind and records in their status
// that it did.
func isWorkload(gvk schema.GroupVersionKind) bool {
	return gvk.Group == appsv1.GroupName && gvk.Kind != "ControllerRevision"
}

// observed reports whether an object's status has an observedGeneration.
func observed(raw []byte) bool {
	status, err := rawjson.Value(raw, "status")
	if err != nil || status == nil {
		return false
	}
	generation, err := rawjson.Value(status, "observedGeneration")
	return err == nil && generation != nil
}

var contentSeed = maphash.MakeSeed()

// contentHash returns a hash of an object without its status, resourceVersion and generation.
func contentHash(raw []byte) (uint64, error) {
	var h maphash.Hash
	h.SetSeed(contentSeed)
	var failed error
	err := rawjson.Members(raw, func(m rawjson.Member) bool {
		switch string(m.Name) {
		case "status":
		case "metadata":
			metadata := raw[m.From:m.End]
			failed = rawjson.Members(metadata, func(m rawjson.Member) bool {
				if name := string(m.Name); name != "resourceVersion" && name != "generation" {
					_, _ = h.Write(metadata[m.Start:m.End])
				}
				return true
			})
		default:
			_, _ = h.Write(raw[m.Start:m.End])
		}
		return failed == nil
	})
	return h.Sum64(), errors.Join(err, failed)
}

// OwnerOf returns the Application that labels name.
func OwnerOf(labels map[string]string) types.NamespacedName {
	return types.NamespacedName{Namespace: labels[oam.AppNamespaceLabel], Name: labels[oam.AppNameLabel]}
}
