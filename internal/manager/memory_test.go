package manager_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/chart/charttest"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

const (
	// managerMemoryMax is the maximum memory of the manager's process with hostile objects, in MiB.
	managerMemoryMax = 1024
	// hostileCanaries is the minimum number of harmless objects measured during each family of
	// hostile ones.
	hostileCanaries = 8
)

// hostileObjects returns the number of objects per family: few in a normal run, 20 with "make
// test-memory".
func hostileObjects() int {
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_HOSTILE_OBJECTS")); err == nil && n > 0 {
		return n
	}
	return 2
}

// zeros returns packed data that unpacks to this many mebibytes of spaces: it has a thousandth of
// that size.
func zeros(t *testing.T, mebibytes int) string {
	t.Helper()
	var b bytes.Buffer
	z, block := gzip.NewWriter(&b), bytes.Repeat([]byte{' '}, 1<<20)
	for range mebibytes {
		if _, err := z.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// aliases returns YAML of a few hundred bytes that becomes gigabytes when its aliases are expanded.
func aliases() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return b.String()
}

// rssAnon returns the memory of a process that does not belong to files, in MiB.
func rssAnon(pid int) int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib >> 10
		}
	}
	return 0
}

// watched watches a resource in the namespace of e. The returned function waits until an object of
// that name has been created, and returns when the watch showed it. Lists and reads would not do:
// they may take 100 ms, or find the object only at the next poll.
func (e *env) watched(gvr schema.GroupVersionResource) func(name string) time.Time {
	e.Helper()
	w, err := e.dyn.Resource(gvr).Namespace(e.ns).Watch(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	var mu sync.Mutex
	at := map[string]time.Time{}
	go func() {
		for event := range w.ResultChan() {
			if o, ok := event.Object.(*unstructured.Unstructured); ok && event.Type == watch.Added {
				mu.Lock()
				at[o.GetName()] = time.Now()
				mu.Unlock()
			}
		}
	}()
	return func(name string) (seen time.Time) {
		e.Helper()
		e.eventually(gvr.Resource+" "+name, func() error {
			mu.Lock()
			defer mu.Unlock()
			if seen = at[name]; seen.IsZero() {
				return errors.New("it has not been created")
			}
			return nil
		})
		return seen
	}
}

// yamlOf returns an object as YAML, for texts that are hard to quote.
func yamlOf(t *testing.T, object map[string]any) string {
	t.Helper()
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestTheManagerStaysSmallUnderHostileObjects creates families of objects whose evaluation or
// unpacking would take gigabytes. It checks that the manager's process takes less than 1 GiB,
// reports the fault on each object, and deploys the objects of others meanwhile, and prints how
// long those took.
func TestTheManagerStaysSmallUnderHostileObjects(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := hostileObjects()
	charts := &charttest.Server{}
	for i := range n {
		version := fmt.Sprintf("1.0.%d", i)
		charts.Publish("greedy", version, charttest.Pack("greedy", version, map[string]string{"templates/a.yaml": `{{- $x := list "xxxxxxxxxxxxxxxx" }}{{ range until 40 }}{{ $x = list (printf "%s%s" (first $x) (first $x)) }}{{ end }}
apiVersion: v1
kind: ConfigMap
metadata: {name: big}
data: {x: {{ first $x }}}`}))
	}
	server := httptest.NewServer(charts)
	t.Cleanup(server.Close)
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithApplications(), localtest.WithNodes(localcluster.Nodes{Count: 4, CPU: "64", Pods: 250}),
		localtest.WithManager(self, "manager", "--allow-requests-to=127.0.0.1"))
	pid, ok := c.PID(localcluster.Manager)
	if !ok {
		t.Fatal("the manager does not run")
	}
	e, bad := newEnv(t, c), newEnv(t, c)
	packed := zeros(t, 700)
	workflow := func(name string, spec, status map[string]any) string {
		w := map[string]any{"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": map[string]any{"name": name}, "spec": spec}
		if status != nil {
			w["status"] = status
		}
		return yamlOf(t, w)
	}
	templates := []any{map[string]any{"name": "main", "container": map[string]any{"image": "busybox", "args": []any{"a"}}}}
	cue := func(name, template string) {
		bad.apply(yamlOf(t, map[string]any{"apiVersion": "core.oam.dev/v1beta1", "kind": "ComponentDefinition", "metadata": map[string]any{"name": name}, "spec": map[string]any{
			"workload": map[string]any{"type": "autodetects.core.oam.dev"}, "schematic": map[string]any{"cue": map[string]any{"template": template}}}}))
		bad.apply(application(name, "components: [{name: c, type: "+name+"}]"))
	}
	families := []struct {
		name     string
		make     func(name string, i int)
		resource schema.GroupVersionResource
		says     string
	}{
		{"cue", func(name string, i int) {
			cue(name, fmt.Sprintf("import \"strings\"\noutput: {apiVersion: \"v1\", kind: \"ConfigMap\", data: x: strings.Repeat(strings.Repeat(strings.Repeat(\"%d\", 4096), 4096), 4096)}", i))
		}, appResource, "evaluation took more than"},
		{"cue-doublings", func(name string, i int) {
			cue(name, fmt.Sprintf("output: {apiVersion: \"v1\", kind: \"ConfigMap\", data: x: _a33}\n_a0: \"xxxxxxxx%08d\"%s", i, doubled(33)))
		}, appResource, "evaluation took more than"},
		{"chart", func(name string, i int) {
			bad.apply(application(name, fmt.Sprintf("components: [{name: c, type: helmchart, properties: {chart: {source: greedy, repoURL: \"%s/charts/\", version: 1.0.%d}}}]", server.URL, i)))
		}, appResource, "evaluation took more than"},
		{"expression", func(name string, i int) {
			bad.apply(workflow(name, map[string]any{"entrypoint": "main", "templates": []any{map[string]any{"name": "main", "container": map[string]any{"image": "busybox",
				"args": []any{fmt.Sprintf("{{= len(map(1..100000, map(1..100000, # + %d))) }}", i)}}}}}, nil))
		}, workflowResource, `"phase":"Error"`},
		{"packed-status", func(name string, _ int) {
			bad.apply(workflow(name, map[string]any{"entrypoint": "main", "templates": templates}, map[string]any{"phase": "Running", "startedAt": "2026-01-01T00:00:00Z", "compressedNodes": packed}))
		}, workflowResource, `"phase":"Error"`},
		{"artifact", func(name string, _ int) {
			bad.apply(yamlOf(t, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"repository": aliases()}}))
			bad.apply(workflow(name, map[string]any{"entrypoint": "main", "artifactRepositoryRef": map[string]any{"configMap": name, "key": "repository"}, "templates": []any{map[string]any{
				"name": "main", "container": map[string]any{"image": "busybox"}, "outputs": map[string]any{"artifacts": []any{map[string]any{"name": "a", "path": "/a"}}}}}}, nil))
		}, workflowResource, `"phase":"Error"`},
		{"record", func(name string, _ int) {
			record := bad.ns + "." + name
			tracker := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "core.oam.dev/v1beta1", "kind": "ResourceTracker",
				"metadata": map[string]any{"name": record, "labels": map[string]any{"app.oam.dev/name": name, "app.oam.dev/namespace": bad.ns},
					// The manager may see the application first. It reads a tracker of a higher number then, too.
					"annotations": map[string]any{oam.RecordAnnotation: "1000"}},
				"spec": map[string]any{"type": "versioned", "applicationGeneration": int64(1), "compression": map[string]any{"type": "gzip", "data": packed}}}}
			if _, err := bad.dyn.Resource(trackerResource).Create(t.Context(), tracker, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			bad.apply(strings.Replace(raw(name, "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+"}}"),
				"metadata: {", "metadata: {finalizers: ["+oam.ResourceTrackerFinalizer+"], ", 1))
		}, appResource, "cannot be read"},
	}
	var apps, jobs []time.Duration
	number := 0
	configMaps, pods := e.watched(configMapResource), e.watched(podResource)
	// canary measures an application and a job, each until its object exists.
	canary := func() {
		number++
		name := fmt.Sprintf("canary-%d", number)
		begin := time.Now()
		e.apply(raw(name, "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+"}}"))
		apps = append(apps, configMaps(name).Sub(begin))
		begin = time.Now()
		e.apply(strings.Replace(oneJob, "name: job", "name: "+name, 1))
		jobs = append(jobs, pods(name+"-main-0").Sub(begin))
	}
	text := func(of []time.Duration) string {
		slices.Sort(of)
		return fmt.Sprintf("%s, of ten nine in %s", of[len(of)/2].Round(time.Millisecond), of[len(of)*9/10].Round(time.Millisecond))
	}
	for range hostileCanaries {
		canary()
	}
	apps, jobs = nil, nil
	for range 4 * hostileCanaries {
		canary()
	}
	t.Logf("before: %d MiB; an application takes %s, a job %s (%d of each)", rssAnon(pid), text(apps), text(jobs), len(jobs))
	for _, f := range families {
		var most int64
		done := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(10 * time.Millisecond):
					most = max(most, rssAnon(pid))
				}
			}
		})
		for i := range n {
			f.make(fmt.Sprintf("%s-%d", f.name, i), i)
		}
		// Canaries run as long as the hostile objects are worked on.
		apps, jobs = nil, nil
		deadline, waiting := time.Now().Add(5*time.Minute), 0
		for waiting < n || len(apps) < hostileCanaries {
			canary()
			if waiting == n {
				continue
			}
			name := fmt.Sprintf("%s-%d", f.name, waiting)
			u, err := bad.dyn.Resource(f.resource).Namespace(bad.ns).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if status := asJSON(u.Object["status"]); strings.Contains(status, f.says) {
				waiting++
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: the status lacks %q: %.1000s", name, f.says, status)
			}
		}
		close(done)
		watching.Wait()
		t.Logf("%d of %s: at most %d MiB; an application takes %s, a job %s (%d of each)", n, f.name, most, text(apps), text(jobs), len(jobs))
		if most == 0 || most > managerMemoryMax {
			t.Errorf("%s: the manager took %d MiB; want at most %d", f.name, most, managerMemoryMax)
		}
		if now, ok := c.PID(localcluster.Manager); !ok || now != pid {
			t.Fatalf("%s: the manager has ended", f.name)
		}
	}
}
