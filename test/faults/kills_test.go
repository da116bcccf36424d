package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/template"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

const (
	// killsPerCopy is the number of kills for each copy of the mixed load, and changedApps the
	// number of applications that are changed beside each copy.
	killsPerCopy = 4
	changedApps  = 5
	// largeMax is the time limit of a large load for each of its copies, and killMax the extra time
	// for each kill.
	largeMax = 30 * time.Second
	killMax  = 10 * time.Second
)

// TestKilledAgainAndAgain kills the manager at random writes of a large load, and the API server in
// between. The load consists of copies of the mixed load in namespaces of their own, which compete
// for the same nodes, and of applications that are changed and deleted all the time. LOCKSTEP_KILLS
// is the number of kills, and the size of the load grows with it. LOCKSTEP_SEED repeats a run as
// far as its timing is repeatable.
func TestKilledAgainAndAgain(t *testing.T) {
	times, seed := killsPerCopy, rand.Uint64()
	for name, set := range map[string]func(uint64){
		"LOCKSTEP_KILLS": func(v uint64) { times = int(v) },
		"LOCKSTEP_SEED":  func(v uint64) { seed = v },
	} {
		if s := os.Getenv(name); s != "" {
			v, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatalf("%s=%s: %v", name, s, err)
			}
			set(v)
		}
	}
	t.Logf("LOCKSTEP_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	w.pods.checkRoomKept()
	r := w.refer(mixed)
	copies := 1 + times/killsPerCopy
	limit := time.Duration(copies)*largeMax + time.Duration(times)*killMax

	k := w.killAt(random.Uint64(), times, copies*r.writes/times)
	changed := w.changing(copies * changedApps)
	var loads []string
	var then []func() []string
	var violations []string
	for range copies {
		ns, f := w.submit(mixed)
		loads, then = append(loads, ns), append(then, f)
		changed.change(random)
	}
	w.killServer()
	for _, f := range then {
		violations = append(violations, f()...)
		changed.change(random)
	}
	for deadline := time.Now().Add(limit); k.left() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("the manager was killed %d times of %d in %s", times-k.left(), times, limit)
		}
		changed.change(random)
	}
	w.killServer()

	for _, ns := range loads {
		if why := w.await(limit, func() error {
			s, over, err := w.stateOf(ns)
			if err == nil && !over {
				err = fmt.Errorf("the end state differs from that without faults:\n%s", s.differs(r.state))
			}
			return err
		}); why != "" {
			violations = append(violations, why)
		}
	}
	for _, ns := range loads {
		if v := w.finish(ns, r); len(v) > 0 {
			violations = append(append(violations, v...), w.story(ns))
		}
	}
	if v := changed.finish(); len(v) > 0 {
		violations = append(append(violations, v...), w.story(changed.ns))
	}
	w.restart()
	w.afterRestart()
	violations = append(violations, w.disturbed()...)
	if len(violations) > 0 {
		t.Errorf("LOCKSTEP_KILLS=%d LOCKSTEP_SEED=%d:\n%s", times, seed, strings.Join(violations, "\n"))
	}
	t.Logf("%d copies of a load of %d writes, %d managers ended", copies, r.writes, w.died)
}

// kills counts the kills that are still to come.
type kills struct {
	mu   sync.Mutex
	more int
}

func (k *kills) left() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.more
}

// killAt kills the manager at random writes: on average at every each-th write, times times in
// total.
func (w *world) killAt(seed uint64, times, each int) *kills {
	k := &kills{more: times}
	random := rand.New(rand.NewPCG(seed, 2))
	var writes, next atomic.Int64
	draw := func() { next.Store(writes.Load() + 1 + random.Int64N(2*int64(each))) }
	draw()
	kill := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		// If the manager does not run at the moment, the kill happens at the next write.
		if k.more > 0 && writes.Load() >= next.Load() && w.c.Kill(localcluster.Manager) == nil {
			k.more--
			draw()
		}
	}
	w.proxy.Decide(func(q *faultproxy.Request) (f faultproxy.Fault) {
		if !q.Write() || q.Resource == "leases" || !authoritative(q) {
			return f
		}
		n := writes.Add(1)
		if n < next.Load() {
			return f
		}
		switch n % int64(len(variants)) {
		case 0:
			f.Before = kill
		case 1:
			f.Done = kill
		case 2:
			f.Answered = kill
		}
		return f
	})
	w.Cleanup(func() { w.proxy.Decide(nil) })
	return k
}

// killServer kills the API server, starts it again and waits until it answers.
func (w *world) killServer() {
	w.Helper()
	if err := w.c.Kill(localcluster.APIServer); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	if err := w.c.StartComponent(ctx, localcluster.APIServer); err != nil {
		w.Fatal(err)
	}
}

// changing is a set of applications in one namespace that are changed and deleted again and again.
type changing struct {
	*world
	ns   string
	apps int
	want map[string]string // the value of each application that should exist
}

func (w *world) changing(apps int) *changing {
	w.Helper()
	return &changing{w, localtest.NamespaceForPods(w, w.core), apps, map[string]string{}}
}

// pair is an application of two components, the second of which depends on the first. The name of
// the second object depends on the value.
var pair = template.Must(template.New("").Parse(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: {{.Name}}}
spec:
  components:
  - name: {{.Name}}-a
    type: k8s-objects
    properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: {{.Name}}-a}, data: {k: {{.Value}}}}]}
  - name: {{.Name}}-b
    type: k8s-objects
    dependsOn: [{{.Name}}-a]
    properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: {{.Name}}-b-{{.Value}}}, data: {k: {{.Value}}}}]}
`))

// change deletes random applications or gives them other values. The first call creates all
// applications.
func (c *changing) change(r *rand.Rand) {
	c.Helper()
	if len(c.want) == 0 {
		for i := range c.apps {
			c.write(fmt.Sprintf("app-%d", i), "first")
		}
		return
	}
	for range 1 + r.IntN(c.apps) {
		name := fmt.Sprintf("app-%d", r.IntN(c.apps))
		if c.want[name] != "" && r.IntN(3) == 0 {
			c.remove(name)
			continue
		}
		c.write(name, fmt.Sprintf("v%d", r.IntN(1000)))
	}
}

func (c *changing) remove(name string) {
	c.Helper()
	localtest.Eventually(c, name+" is deleted", func() error {
		err := c.dyn.Resource(applications).Namespace(c.ns).Delete(c.Context(), name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	delete(c.want, name)
}

func (c *changing) write(name, value string) {
	c.Helper()
	var text bytes.Buffer
	if err := pair.Execute(&text, struct{ Name, Value string }{name, value}); err != nil {
		c.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text.Bytes(), &u.Object); err != nil {
		c.Fatal(err)
	}
	r := c.dyn.Resource(applications).Namespace(c.ns)
	localtest.Eventually(c, name+" is written", func() error {
		_, err := r.Create(c.Context(), u, metav1.CreateOptions{FieldValidation: "Strict"})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		old, err := r.Get(c.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if old.GetDeletionTimestamp() != nil {
			return fmt.Errorf("it is going") // and must be gone before it is created again
		}
		old.Object["spec"] = u.Object["spec"]
		_, err = r.Update(c.Context(), old, metav1.UpdateOptions{})
		return err
	})
	c.want[name] = value
}

// finish waits until all applications are as last written, deletes them, and waits until nothing is
// left.
func (c *changing) finish() (violations []string) {
	c.Helper()
	if why := c.await(endMax, c.asWanted); why != "" {
		return []string{why}
	}
	for i := range c.apps {
		c.remove(fmt.Sprintf("app-%d", i))
	}
	if why := c.await(endMax, c.asWanted); why != "" {
		violations = append(violations, why)
	} else if why := c.rest(c.ns); why != "" {
		violations = append(violations, why)
	}
	return violations
}

// asWanted returns an error that names a difference between the expected and the actual objects of
// the applications.
func (c *changing) asWanted() error {
	left := map[string]string{}
	for name, value := range c.want {
		left[name+"-a"], left[name+"-b-"+value] = value, value
	}
	objects, err := c.core.CoreV1().ConfigMaps(c.ns).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range objects.Items {
		o := &objects.Items[i]
		value, expected := left[o.Name]
		switch {
		case o.Name == "kube-root-ca.crt":
		case !expected:
			return fmt.Errorf("configmap %s should not be there", o.Name)
		case o.Data["k"] != value:
			return fmt.Errorf("configmap %s is %q, not %q", o.Name, o.Data["k"], value)
		}
		delete(left, o.Name)
	}
	for name := range left {
		return fmt.Errorf("configmap %s is missing", name)
	}
	records, err := c.dyn.Resource(trackers).List(c.Context(), metav1.ListOptions{LabelSelector: oam.AppNamespaceLabel + "=" + c.ns})
	if err != nil {
		return err
	}
	if len(records.Items) != len(c.want) {
		return fmt.Errorf("%d trackers of %d applications", len(records.Items), len(c.want))
	}
	apps, err := c.dyn.Resource(applications).Namespace(c.ns).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range apps.Items {
		if phase, _, _ := unstructured.NestedString(apps.Items[i].Object, "status", "status"); phase != string(oam.PhaseRunning) {
			return fmt.Errorf("application %s is %q", apps.Items[i].GetName(), phase)
		}
	}
	return nil
}
