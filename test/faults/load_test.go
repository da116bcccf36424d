package faults

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// load is a set of manifests that a user submits.
type load struct {
	name  string
	files []string
}

var (
	batchLoad       = load{"batch", []string{"batch.yaml"}}
	workflowLoad    = load{"workflows", []string{"workflows.yaml"}}
	applicationLoad = load{"applications", []string{"applications.yaml"}}
	small           = []load{batchLoad, workflowLoad, applicationLoad}
	mixed           = load{"mixed", []string{"mixed.yaml", "batch.yaml", "workflows.yaml", "applications.yaml"}}
)

const (
	// endMax is the time limit of a load, including faults and restarts.
	endMax = 45 * time.Second
	// restMax is how long after the end of a load the manager may still write. A load is at rest
	// when the manager has written nothing for quiet.
	restMax = 30 * time.Second
	quiet   = time.Second
)

// reference is the result of a load without faults.
type reference struct {
	state  state
	made   map[string]int
	writes int
}

// submit submits a load in a new namespace. then runs the later steps of its user.
func (w *world) submit(l load) (ns string, then func() []string) {
	w.Helper()
	ns = localtest.NamespaceForPods(w, w.core)
	for _, f := range l.files {
		w.apply(ns, f)
	}
	return ns, func() []string {
		if l.files[len(l.files)-1] != "applications.yaml" {
			return nil
		}
		// Both applications must run before they are changed. The second user waits no longer than
		// the first.
		if why := w.await(endMax, func() error { return w.running(ns, "changed", "deleted") }); why != "" {
			return []string{why}
		}
		w.apply(ns, "applications-then.yaml")
		w.delete(ns, applications, "deleted")
		return nil
	}
}

func (w *world) running(ns string, names ...string) error {
	s, _, err := w.stateOf(ns)
	for _, name := range names {
		if err == nil && !strings.Contains(strings.Join(s, "\n"), fmt.Sprintf("configmap %s-", name)) {
			err = fmt.Errorf("application %s has no object", name)
		}
		for _, line := range s {
			if strings.HasPrefix(line, "application "+name+":") && !strings.Contains(line, `"status":"running"`) {
				err = fmt.Errorf("%s", line)
			}
		}
	}
	return err
}

// await is localtest.Await but returns the last failure as text.
func (w *world) await(within time.Duration, f func() error) string {
	if err := localtest.Await(w.Context(), within, f); err != nil {
		return err.Error()
	}
	return ""
}

// refer runs a load without faults and returns its result.
func (w *world) refer(l load) reference {
	w.Helper()
	before := len(w.written(""))
	ns, then := w.submit(l)
	if why := then(); why != nil {
		w.Fatal(why)
	}
	var r reference
	if why := w.await(endMax, func() error {
		s, over, err := w.stateOf(ns)
		if err == nil && !over {
			err = fmt.Errorf("it is not over:\n%s", strings.Join(s, "\n"))
		}
		return err
	}); why != "" {
		w.Fatalf("load %s without faults: %s\n%s", l.name, why, w.story(ns))
	}
	if why := w.rest(ns); why != "" {
		w.Fatal(why)
	}
	var err error
	if r.state, _, err = w.stateOf(ns); err != nil {
		w.Fatal(err)
	}
	r.made, r.writes = w.pods.created(ns), len(w.written(""))-before
	if v := w.pods.check(ns, r.made); len(v) > 0 {
		w.Fatalf("load %s without faults: %v", l.name, v)
	}
	return r
}

// finish waits for the end of a load under faults, and returns the differences from its result
// without faults.
func (w *world) finish(ns string, r reference) (violations []string) {
	w.Helper()
	if why := w.await(endMax, func() error {
		s, _, err := w.stateOf(ns)
		if err != nil {
			return err
		}
		if d := s.differs(r.state); d != "" {
			return fmt.Errorf("the end state differs from that without faults:\n%s", d)
		}
		return nil
	}); why != "" {
		violations = append(violations, why)
	} else if why := w.rest(ns); why != "" {
		violations = append(violations, why)
	}
	return append(violations, w.pods.check(ns, r.made)...)
}

// written returns the manager's writes in a namespace and to cluster-scoped objects whose name
// contains the namespace. If ns is empty it returns all writes. It leaves out leases and updates of
// events' counts: those are sent up to half a minute late and may come when the load is at rest.
func (w *world) written(ns string) (out []analyse.Event) {
	w.Helper()
	if err := w.audit.Collect(); err != nil {
		w.Fatal(err)
	}
	for _, e := range w.audit.Events {
		if e.Actor == observe.Manager && e.Resource != "leases.coordination.k8s.io" && (e.Resource != "events" || e.Verb != "patch") &&
			(ns == "" || e.Namespace == ns || strings.Contains(e.Name, ns)) {
			out = append(out, e)
		}
	}
	return out
}

// rest waits until the manager has written nothing to the namespace for some time. From then on the
// manager must not write: see disturbed.
func (w *world) rest(ns string) string {
	n, since := -1, time.Now()
	why := w.await(restMax, func() error {
		writes := w.written(ns)
		if len(writes) != n {
			n, since = len(writes), time.Now()
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("the manager still writes %s after the end of the load", restMax)
		}
		return w.settled()
	})
	w.resting[ns] = n
	return why
}

// settled returns nil if the manager has no write waiting for a retry. A retry may take seconds
// after a fault.
func (w *world) settled() error {
	answer, err := http.Get("http://" + w.c.ManagerAddress() + "/metrics")
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	page, err := io.ReadAll(answer.Body)
	if err == nil && !strings.Contains(string(page), "\nlockstep_apiwriter_open 0\n") {
		err = errors.New("writes of the manager have not ended")
	}
	return err
}

// disturbed returns the writes to namespaces that were at rest, and their stories.
func (w *world) disturbed() (violations []string) {
	w.Helper()
	for ns, n := range w.resting {
		writes := w.written(ns)
		for i, e := range writes[n:] {
			if i == 5 {
				violations = append(violations, fmt.Sprintf("%s at rest: and %d more writes", ns, len(writes)-n-5))
				break
			}
			violations = append(violations, fmt.Sprintf("%s at rest: %s %s %s: %d", ns, e.Verb, e.Kind(), e.Name, e.Code))
		}
		if len(writes) > n {
			violations = append(violations, w.story(ns))
		}
		w.resting[ns] = len(writes)
	}
	return violations
}
