package controller

import (
	"encoding/json"
	"slices"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4" // as the API server

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// TestFinalizersThatOthersAddStay checks that a patch of the finalizers fails if another client has
// changed them meanwhile.
func TestFinalizersThatOthersAddStay(t *testing.T) {
	for name, c := range map[string]struct {
		before, now, to []string
		fails           bool
	}{
		"the first":                        {nil, nil, []string{"ours"}, false},
		"one more":                         {[]string{"theirs"}, []string{"theirs"}, []string{"theirs", "ours"}, false},
		"the last is removed":              {[]string{"ours"}, []string{"ours"}, nil, false},
		"the first, and theirs is added":   {nil, []string{"theirs"}, []string{"ours"}, true},
		"one more, and theirs is removed":  {[]string{"theirs"}, nil, []string{"theirs", "ours"}, true},
		"ours is removed, theirs is added": {[]string{"ours"}, []string{"ours", "theirs"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &oam.Application{}
			o.Finalizers = c.before
			data, err := finalizersPatch(o, c.to)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(data)
			if err != nil {
				t.Fatal(err)
			}
			o.Finalizers = c.now
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			patched, err := patch.Apply(text)
			if (err != nil) != c.fails {
				t.Fatalf("%s applied to %q: %v", data, c.now, err)
			}
			if err != nil {
				return
			}
			var got oam.Application
			if err := json.Unmarshal(patched, &got); err != nil || !slices.Equal(got.Finalizers, c.to) {
				t.Errorf("%q (%v), want %q", got.Finalizers, err, c.to)
			}
		})
	}
}
