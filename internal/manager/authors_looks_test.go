package manager

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/application/author"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// TestWhatCannotBeLookedAtIsNoAnswer checks that the last known result remains while a server does
// not answer, or forbids everything because it starts. If there is no result yet, applications
// report the error only when the situation lasts.
func TestWhatCannotBeLookedAtIsNoAnswer(t *testing.T) {
	gone := &unknownError{io.ErrUnexpectedEOF}
	forbidden := &unknownError{apierrors.NewForbidden(schema.GroupResource{}, "policy", errors.New("no right"))}
	const forbiddenMax = kubeclient.ForbiddenMax
	missing := errors.New("there is no policy")
	type look struct {
		after time.Duration // since the previous check
		err   error
	}
	const wait = "it is not known yet"
	for name, c := range map[string]struct {
		looks []look
		want  string // part of the final result of recorded
	}{
		"nothing yet":                          {nil, wait},
		"no answer yet":                        {[]look{{0, gone}, {silentMax - 1, gone}}, wait},
		"no answer for long":                   {[]look{{0, gone}, {silentMax, gone}}, "it cannot be seen"},
		"no answer for long, and then one":     {[]look{{0, gone}, {silentMax, gone}, {1, nil}}, ""},
		"an answer":                            {[]look{{0, nil}}, ""},
		"a bad answer":                         {[]look{{0, missing}}, "there is no policy"},
		"a bad answer after silence":           {[]look{{0, gone}, {1, missing}}, "there is no policy"},
		"silence after an answer":              {[]look{{0, nil}, {1, gone}, {silentMax, gone}, {silentMax, gone}}, ""},
		"silence after a bad answer":           {[]look{{0, missing}, {1, gone}, {silentMax, gone}}, "there is no policy"},
		"forbidden while the server starts":    {[]look{{0, forbidden}, {forbiddenMax - 1, forbidden}}, wait},
		"forbidden for a moment":               {[]look{{0, nil}, {1, forbidden}, {forbiddenMax - 1, forbidden}}, ""},
		"forbidden for long":                   {[]look{{0, forbidden}, {forbiddenMax, forbidden}}, "forbidden"},
		"forbidden for long, after an answer":  {[]look{{0, nil}, {1, forbidden}, {forbiddenMax, forbidden}}, "forbidden"},
		"forbidden twice, an answer between":   {[]look{{0, forbidden}, {1, nil}, {forbiddenMax, forbidden}}, ""},
		"forbidden for long, and then allowed": {[]look{{0, forbidden}, {forbiddenMax, forbidden}, {1, nil}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, now := &authors{}, time.Unix(1000, 0)
			w.state.Store(&verdict{author.ErrNotKnown})
			for _, l := range c.looks {
				now = now.Add(l.after)
				w.decide(l.err, now)
			}
			got := ""
			if err := w.recorded(); err != nil {
				got = err.Error()
			}
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("recorded is %q, want %q", got, c.want)
			}
			if waits := errors.Is(w.recorded(), author.ErrNotKnown); waits != (c.want == wait) {
				t.Errorf("applications wait: %t", waits)
			}
		})
	}
}
