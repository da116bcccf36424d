package controller_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// TestWhatTheServerRefusesIsAskedForAgainLater checks that refused writes are neither repeated at
// once nor forgotten.
func TestWhatTheServerRefusesIsAskedForAgainLater(t *testing.T) {
	t.Parallel()
	e := start(t)
	about := func(method, path, with string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && strings.Contains(r.URL.Path, "/namespaces/"+e.ns+"/"+path) && (with == "" || strings.Contains(body(t, r), with))
		}
	}
	cases := map[string]struct {
		match func(*http.Request) bool
		spec  string
		ends  func() error
	}{
		"pod": {
			match: about(http.MethodDelete, "pods/pod", ""),
			spec:  "podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}\nentrypoint: quick\ntemplates:" + stepTemplates,
			ends: func() error {
				if n := len(e.pods("pod")); n > 0 {
					return fmt.Errorf("%d pods", n)
				}
				return nil
			},
		},
		"expired": {
			match: about(http.MethodDelete, "workflows/expired", ""),
			spec:  "ttlStrategy: {secondsAfterCompletion: 0}\nentrypoint: quick\ntemplates:" + stepTemplates,
			ends: func() error {
				if _, err := e.get("expired"); !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is there: %w", err)
				}
				return nil
			},
		},
		"artifacts": {
			match: about(http.MethodPatch, "workflows/artifacts", "artifactGCStatus"),
			spec: `
artifactGC: {strategy: OnWorkflowCompletion, podMetadata: {annotations: {lockstep.dev/sim-duration: 50ms}}}
entrypoint: main
templates:` + makers,
			ends: func() error {
				w, err := e.get("artifacts")
				if err == nil && marked(w) != "a b" {
					err = fmt.Errorf("deleted: %q", marked(w))
				}
				return err
			},
		},
	}
	for name, c := range cases {
		times, release := managertest.Refuse(t, c.match)
		e.submit(name, c.spec)
		e.eventually(name+": refused", func() error {
			if times() == 0 {
				return errors.New("nothing was")
			}
			return nil
		})
		// A write that is repeated at once would have been repeated hundreds of times before
		// another workflow ends.
		e.submit("after-"+name, `
entrypoint: main
templates:
- name: main
  metadata: {annotations: {lockstep.dev/sim-duration: 1s}}
  container: {image: a, command: [c]}
`)
		e.until("after-"+name, inPhase(wf.WorkflowSucceeded))
		if n := times(); n > 10 {
			t.Errorf("%s: it was asked for %d times", name, n)
		}
		release()
		e.eventually(name+": asked for again", c.ends)
	}
}

func body(t testing.TB, r *http.Request) string {
	if r.GetBody == nil {
		t.Errorf("the body of %s %s cannot be read", r.Method, r.URL.Path)
		return ""
	}
	content, err := r.GetBody()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer content.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, content); err != nil {
		t.Error(err)
	}
	return b.String()
}
