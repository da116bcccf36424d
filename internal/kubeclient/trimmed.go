package kubeclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Most of a manager's allocations are for pods: it sees every pod four or five times, and reads a
// tenth of each. TrimmedCore removes the rest from the encoded pod, so that it is never decoded.

// TrimmedCore is ForGroupVersion for the built-in core types, for code that schedules and watches
// pods. Its pods lack the fields that only kubelets and people read: managed fields, what
// containers run and with which environment, volumes made on the node, security contexts, network
// addresses except the first, images and IDs of running containers. Pods share the common parts of
// their specs, which must not be modified.
func TrimmedCore(cfg *rest.Config, conn *http.Client, s *kruntime.Scheme) (rest.Interface, error) {
	return clientFor(cfg, conn, corev1.SchemeGroupVersion, protobufType, trimmedCodecs(s))
}

func trimmedCodecs(s *kruntime.Scheme) codecs {
	c := codecsOf(s)
	for i := range c.media {
		if c.media[i].MediaType == protobufType {
			c.media[i].Serializer = trimmedPods{c.media[i].Serializer}
			stream := *c.media[i].StreamSerializer
			stream.Serializer = protobufEvents{stream.Serializer}
			c.media[i].StreamSerializer = &stream
		}
	}
	return c
}

// trimmedPods decodes pods with DecodeTrimmedPod, and everything else with the underlying
// serializer.
type trimmedPods struct{ kruntime.Serializer }

// envelope is the prefix of an object in protobuf; a message with its type and its encoding
// follows.
var envelope = []byte("k8s\x00")

// Decode implements runtime.Decoder.
func (l trimmedPods) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object,
	*schema.GroupVersionKind, error) {
	if body, ours := bytes.CutPrefix(data, envelope); ours && into == nil {
		if raw, found := podIn(body); found {
			if pod, err := DecodeTrimmedPod(raw); err == nil {
				gvk := corev1.SchemeGroupVersion.WithKind("Pod")
				return pod, &gvk, nil
			}
		}
	}
	return l.Serializer.Decode(data, defaults, into) // reports what is wrong with data
}

// podIn finds the encoding of a pod in its envelope: field 1 is the type, with version and kind;
// field 2 is the object.
func podIn(body []byte) (raw []byte, found bool) {
	var kind, version []byte
	err := eachField(body, func(number int, value []byte, _ []byte) error {
		switch number {
		case 1:
			return eachField(value, func(number int, value []byte, _ []byte) error {
				switch number {
				case 1:
					version = value
				case 2:
					kind = value
				}
				return nil
			})
		case 2:
			raw, found = value, true
		}
		return nil
	})
	return raw, found && err == nil && string(version) == "v1" && string(kind) == "Pod"
}

// protobufEvents decodes watch events without copying the objects in them: an event's object is a
// part of the data.
type protobufEvents struct{ kruntime.Serializer }

// Decode implements runtime.Decoder.
func (p protobufEvents) Decode(data []byte, defaults *schema.GroupVersionKind, into kruntime.Object) (kruntime.Object,
	*schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok {
		*event = metav1.WatchEvent{}
		err := eachField(data, func(number int, value, _ []byte) error {
			switch number {
			case 1:
				event.Type = string(value)
			case 2:
				return eachField(value, func(number int, value, _ []byte) error {
					if number == 1 {
						event.Object.Raw = value
					}
					return nil
				})
			}
			return nil
		})
		if err == nil {
			return event, &schema.GroupVersionKind{}, nil
		}
	}
	return p.Serializer.Decode(data, defaults, into) // reports what is wrong with data
}

// drops lists the fields of a message to drop, by number. A field with a nil value is dropped
// whole. Any other value lists the fields to drop from the message in the field.
type drops map[int]drops

func (d drops) with(numbers ...int) drops {
	for _, n := range numbers {
		d[n] = nil
	}
	return d
}

// Field numbers are those of generated.proto in k8s.io/api/core/v1 and in apimachinery's meta/v1.
var (
	containerDrops = drops{}.with(3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25)
	// A host path, an empty directory, and files made from objects.
	volumeDrops = drops{2: drops{}.with(1, 2, 6, 16, 19, 26)}
	stateDrops  = drops{}.with(3, 6, 7, 8, 9, 12, 13, 14, 15)
	specDrops   = drops{2: containerDrops, 20: containerDrops}.with(3, 4, 5, 6, 8, 9, 12, 13, 14, 15, 16, 17, 21, 23, 26,
		27, 28, 30, 34, 35, 36, 37, 41)
	podDrops = drops{
		1: drops{}.with(2, 4, 17),
		3: drops{8: stateDrops, 10: stateDrops}.with(5, 9, 12, 13, 14, 16, 17),
	}.with(podSpecField)
)

// Fields that are handled one by one.
const (
	podSpecField      = 2
	specVolumeField   = 1
	specNodeField     = 10
	volumeSourceField = 2
)

// scratch pools buffers for encodings that are decoded immediately: decoding copies what it keeps.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// DecodeTrimmedPod decodes a pod from its protobuf encoding, given without its envelope. It skips
// the fields that TrimmedCore drops.
func DecodeTrimmedPod(raw []byte) (*corev1.Pod, error) {
	buffer := scratch.Get().(*[]byte)
	defer scratch.Put(buffer)
	var spec []byte
	err := eachField(raw, func(number int, value, _ []byte) error {
		if number == podSpecField {
			if spec != nil {
				return errTwice
			}
			spec = value
		}
		return nil
	})
	pod := &corev1.Pod{}
	var lean []byte
	if err == nil {
		lean, err = podDrops.prune((*buffer)[:0], raw)
		*buffer = lean
	}
	if err == nil {
		err = pod.Unmarshal(lean)
	}
	if err == nil && spec != nil {
		pod.Spec, err = leanSpec(buffer, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("encoded pod: %w", err)
	}
	return pod, nil
}

var errTwice = errors.New("it has two specs")

// leanSpec decodes the spec of a pod.
func leanSpec(buffer *[]byte, raw []byte) (corev1.PodSpec, error) {
	node := ""
	lean := (*buffer)[:0]
	err := eachField(raw, func(number int, value, whole []byte) error {
		start := len(lean)
		var err error
		switch number {
		case specNodeField:
			node = string(value)
		case specVolumeField:
			if lean, err = (drops{specVolumeField: volumeDrops}).field(lean, number, value, whole); err != nil {
				return err
			}
			if empty, err := emptyVolume(lean[start:]); empty || err != nil {
				lean = lean[:start]
				return err
			}
		default:
			lean, err = specDrops.field(lean, number, value, whole)
		}
		return err
	})
	*buffer = lean
	if err != nil {
		return corev1.PodSpec{}, err
	}
	spec, err := specs.decode(lean)
	spec.NodeName = node
	return spec, err
}

// emptyVolume reports whether nothing is left of the source of a volume. whole is the volume's
// encoded field, with its tag.
func emptyVolume(whole []byte) (bool, error) {
	empty := true
	err := eachField(whole, func(_ int, volume, _ []byte) error {
		return eachField(volume, func(number int, value, _ []byte) error {
			empty = empty && (number != volumeSourceField || len(value) == 0)
			return nil
		})
	})
	return empty, err
}

// knownSpecs caches decoded specs by their encoding. Except for the node, pods of one origin have
// equal specs, and each pod is received several times: equal specs are decoded and stored once.
type knownSpecs struct {
	mu    sync.Mutex
	specs map[string]corev1.PodSpec
}

var specs = knownSpecs{specs: map[string]corev1.PodSpec{}}

// specsMax is the maximum number of cached specs; if more different specs are in use at a time,
// sharing saves less. specBytesMax is the maximum size of a cached encoding, in bytes.
const (
	specsMax     = 256
	specBytesMax = 4096
)

func (k *knownSpecs) decode(lean []byte) (corev1.PodSpec, error) {
	k.mu.Lock()
	spec, known := k.specs[string(lean)]
	k.mu.Unlock()
	if known {
		return spec, nil
	}
	if err := spec.Unmarshal(lean); err != nil || len(lean) > specBytesMax {
		return spec, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.specs) >= specsMax {
		clear(k.specs)
	}
	k.specs[string(lean)] = spec
	return spec, nil
}

// prune appends the fields of an encoded message that are not dropped.
func (d drops) prune(out, message []byte) ([]byte, error) {
	err := eachField(message, func(number int, value, whole []byte) error {
		var err error
		out, err = d.field(out, number, value, whole)
		return err
	})
	return out, err
}

// field appends a field without its dropped parts.
func (d drops) field(out []byte, number int, value, whole []byte) ([]byte, error) {
	inner, named := d[number]
	switch {
	case !named:
		return append(out, whole...), nil
	case inner == nil:
		return out, nil
	}
	// The new length is not larger than the old one and is padded to as many bytes, which the
	// encoding of numbers permits.
	head := len(whole) - len(value)
	out = append(out, whole[:head]...)
	start := len(out)
	out, err := inner.prune(out, value)
	if err != nil {
		return out, err
	}
	tag := 1
	for whole[tag-1] >= 0x80 {
		tag++
	}
	putPadded(out[start-head+tag:start], len(out)-start)
	return out, nil
}

// putPadded writes a number that needs at most len(room) bytes into all bytes of room.
func putPadded(room []byte, n int) {
	for i := range room {
		room[i] = byte(n&0x7f) | 0x80
		n >>= 7
	}
	room[len(room)-1] &= 0x7f
}

var errTruncated = errors.New("not a message of protobuf")

// eachField calls do with each field of an encoded message: its number, its value, which is nil for
// numeric fields, and the whole field.
func eachField(message []byte, do func(number int, value, whole []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errTruncated
		}
		var value []byte
		switch tag & 7 {
		case 0:
			_, k := binary.Uvarint(message[n:])
			if k <= 0 {
				return errTruncated
			}
			n += k
		case 1:
			n += 8
		case 2:
			length, k := binary.Uvarint(message[n:])
			if k <= 0 || length > uint64(len(message)-n-k) {
				return errTruncated
			}
			n += k
			value = message[n : n+int(length)]
			n += int(length)
		case 5:
			n += 4
		default:
			return errTruncated
		}
		if n > len(message) {
			return errTruncated
		}
		if err := do(int(tag>>3), value, message[:n]); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}
