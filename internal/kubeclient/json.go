package kubeclient

import (
	"bytes"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// codecs are a scheme's codecs, with a JSON serializer that finds the kind of an object without
// parsing the whole object twice, and that splits watch events without parsing the objects in them.
type codecs struct {
	serializer.WithoutConversionCodecFactory
	media []kruntime.SerializerInfo
}

func codecsOf(s *kruntime.Scheme) codecs {
	c := codecs{}
	c.WithoutConversionCodecFactory.CodecFactory = serializer.NewCodecFactory(s)
	quick := json.NewSerializerWithOptions(quickMeta{}, s, s, json.SerializerOptions{})
	for _, info := range c.WithoutConversionCodecFactory.SupportedMediaTypes() {
		if info.MediaType == jsonType {
			info.Serializer = quick
			stream := *info.StreamSerializer
			stream.Serializer, stream.Framer = events{quick}, framer{}
			info.StreamSerializer = &stream
		}
		c.media = append(c.media, info)
	}
	return c
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c codecs) SupportedMediaTypes() []kruntime.SerializerInfo { return c.media }

// quickMeta finds version and kind at the beginning of an object, where API servers put them, and
// otherwise falls back to the default method.
type quickMeta struct{}

// Interpret implements json.MetaFactory.
func (quickMeta) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	if rest, found := bytes.CutPrefix(data, []byte(`{"apiVersion":"`)); found {
		if version, rest, found := cutWord(rest); found {
			if rest, found = bytes.CutPrefix(rest, []byte(`,"kind":"`)); found {
				if kind, _, found := cutWord(rest); found {
					gv, err := schema.ParseGroupVersion(version)
					if err != nil {
						return nil, err
					}
					return &schema.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: kind}, nil
				}
			}
		}
	}
	return json.DefaultMetaFactory.Interpret(data)
}

// wordMax is longer than any version or kind, in bytes.
const wordMax = 400

// cutWord removes a string without escapes from the front of data, which begins after the string's
// opening quote.
func cutWord(data []byte) (word string, rest []byte, found bool) {
	end := bytes.IndexByte(data[:min(len(data), wordMax)], '"')
	if end < 0 || bytes.IndexByte(data[:end], '\\') >= 0 {
		return "", nil, false
	}
	return string(data[:end]), data[end+1:], true
}
