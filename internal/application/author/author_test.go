package author

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// TestRecordedAuthors reads author annotations in their present and their older form, and checks
// that the older form never grants more than was meant.
func TestRecordedAuthors(t *testing.T) {
	for name, v := range map[string]struct {
		annotations map[string]string
		want        *apiwriter.Identity
		err         bool
	}{
		"nobody":                       {map[string]string{}, nil, true},
		"a user without groups":        {map[string]string{"app.oam.dev/username": "a", "lockstep.dev/author-groups": "[]"}, &apiwriter.Identity{User: "a", Groups: []string{}}, false},
		"a group with a comma":         {map[string]string{"app.oam.dev/username": "a", "app.oam.dev/group": "x,system:masters", "lockstep.dev/author-groups": `["x,system:masters"]`}, &apiwriter.Identity{User: "a", Groups: []string{"x,system:masters"}}, false},
		"not a list":                   {map[string]string{"app.oam.dev/username": "a", "lockstep.dev/author-groups": `x,y`}, nil, true},
		"older: one group":             {map[string]string{"app.oam.dev/username": "a", "app.oam.dev/group": "system:masters"}, &apiwriter.Identity{User: "a", Groups: []string{"system:masters"}}, false},
		"older: a list as a name":      {map[string]string{"app.oam.dev/username": "a", "app.oam.dev/group": `["system:masters"]`}, &apiwriter.Identity{User: "a", Groups: []string{`["system:masters"]`}}, false},
		"older: one group or two":      {map[string]string{"app.oam.dev/username": "a", "app.oam.dev/group": "devs,system:masters"}, nil, true},
		"older: a service account":     {map[string]string{"app.oam.dev/username": "system:serviceaccount:n:a", "app.oam.dev/group": "system:serviceaccounts,system:serviceaccounts:n"}, &apiwriter.Identity{User: "system:serviceaccount:n:a", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:n"}}, false},
		"older: an odd one":            {map[string]string{"app.oam.dev/username": "system:serviceaccount:n:a", "app.oam.dev/group": "x,system:masters"}, &apiwriter.Identity{User: "system:serviceaccount:n:a", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:n"}}, false},
		"a space that would be lost":   {map[string]string{"app.oam.dev/username": "a", "lockstep.dev/author-groups": `[" system:masters"]`}, nil, true},
		"a line that would be another": {map[string]string{"app.oam.dev/username": "a", "lockstep.dev/author-groups": `["x\nimpersonate-group: system:masters"]`}, nil, true},
		"a group without a name":       {map[string]string{"app.oam.dev/username": "a", "lockstep.dev/author-groups": `[""]`}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := recordedAuthor(&oam.Application{ObjectMeta: metav1.ObjectMeta{Annotations: v.annotations}})
			if d := cmp.Diff(v.want, got); d != "" || v.err != (err != nil) {
				t.Errorf("error %v, (-want +got)\n%s", err, d)
			}
		})
	}
}

// TestApplicationsThatConfineThemselvesAreConfined checks, for every configuration of the manager and
// every recorded author, that an Application that names a service account never acts as anybody else:
// it acts as that account, or not at all.
func TestApplicationsThatConfineThemselvesAreConfined(t *testing.T) {
	account := &apiwriter.Identity{User: "system:serviceaccount:n:low", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:n"}}
	recorded := map[string]func() error{
		"always": nil, "yes": func() error { return nil }, "no": func() error { return errors.New("no policies") },
		"not known": func() error { return ErrNotKnown },
	}
	authors := map[string]map[string]string{
		"nobody": {}, "root": {"app.oam.dev/username": "root", "lockstep.dev/author-groups": `["system:masters"]`},
		"unreadable": {"app.oam.dev/username": "root", "lockstep.dev/author-groups": "x"},
	}
	for _, asManager := range []bool{true, false} {
		for recording, f := range recorded {
			for written, annotations := range authors {
				for _, named := range []string{"low", "x:system:masters", "../low", "system:masters"} {
					o := &oam.Application{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Annotations: maps.Clone(annotations)}}
					o.Annotations[oam.ServiceAccountAnnotation] = named
					x := &Finder{ActAsManager: asManager, Recorded: f}
					got, err := x.Of(o)
					acts := named == "low" && (asManager || (recording == "always" || recording == "yes") && written == "root")
					if acts && (err != nil || cmp.Diff(account, got) != "") || !acts && (err == nil || got != nil) {
						t.Errorf("as manager %t, authors recorded %s, written by %s, account %q: it acts as %v, error %v", asManager, recording, written, named, got, err)
					}
				}
			}
		}
	}
}
