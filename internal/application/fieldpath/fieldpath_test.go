package fieldpath

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for path, want := range map[string][]string{
		"": nil, "a": {"a"}, "a.b": {"a", "b"}, "a[0].b": {"a", "0", "b"}, `a["c.d"].e`: {"a", "c.d", "e"}, `a."c.d"[1]`: {"a", "c.d", "1"},
		"a['x']": {"a", "x"}, "a[0": {"a", "[0"},
	} {
		if diff := cmp.Diff(want, split(path)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

func TestSet(t *testing.T) {
	type list = []any
	type object = map[string]any
	for about, c := range map[string]struct {
		v       any
		path    string
		listMax int
		want    any // nil: an error, and v is as before
	}{
		"a field that exists":                {object{"a": 1}, "a", 0, object{"a": "new"}},
		"a field in missing maps":            {nil, "a.b", 0, object{"a": object{"b": "new"}}},
		"an item that exists":                {object{"a": list{1, 2}}, "a[1]", 0, object{"a": list{1, "new"}}},
		"an item that does not exist":        {object{"a": list{1}}, "a[1].b", 0, nil},
		"a missing list":                     {object{}, "a[1]", 4, object{"a": list{nil, "new"}}},
		"a list that may not grow so far":    {object{}, "a[4]", 4, nil},
		"a number as a name":                 {object{}, "a.0", 0, object{"a": object{"0": "new"}}},
		"a field inside a scalar":            {object{"a": 1}, "a.b", 0, nil},
		"an index before the first":          {object{"a": list{1}}, "a[-1]", 4, nil},
		"a path through several lists":       {object{"a": list{object{"b": list{object{"c": 1}}}}}, "a[0].b[0].c", 0, object{"a": list{object{"b": list{object{"c": "new"}}}}}},
		"a part in quotation marks":          {object{}, `a["b.c"]`, 0, object{"a": object{"b.c": "new"}}},
		"a name where there is a list":       {object{"a": list{1}}, "a.b", 4, nil},
		"a path that ends in a missing part": {object{"a": object{}}, "a.b.c", 0, object{"a": object{"b": object{"c": "new"}}}},
	} {
		t.Run(about, func(t *testing.T) {
			got, err := Set(c.v, c.path, "new", c.listMax)
			if (err != nil) != (c.want == nil) || err == nil && cmp.Diff(c.want, got) != "" {
				t.Fatalf("%v (%v), want %v", got, err, c.want)
			}
			if is, found := Get(got, c.path); err == nil && (!found || is != "new") {
				t.Errorf("read %v", is)
			}
		})
	}
}
