package apiwriter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/http2client"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) {
	localtest.Main(m, localtest.WithConfig(func(c *localcluster.Config) { c.Install = installJobs }))
}

// installJobs installs Lockstep's Job with a schema that accepts everything: the test is about the
// writer, not about validation.
func installJobs(ctx context.Context, cfg *rest.Config) error {
	const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"jobs.batch.volcano.sh"},
		"spec":{"group":"batch.volcano.sh","scope":"Namespaced","names":{"plural":"jobs","kind":"Job"},
		"versions":[{"name":"v1alpha1","served":true,"storage":true,"subresources":{"status":{}},
		"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"spec":{"type":"object","required":["tasks"],"x-kubernetes-preserve-unknown-fields":true},
			"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	r := client.Discovery().RESTClient()
	if err := r.Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").SetHeader("Content-Type", "application/json").Body([]byte(crd)).Do(ctx).Error(); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		return r.Get().AbsPath("/apis/batch.volcano.sh/v1alpha1/jobs").Do(ctx).Error() == nil, nil
	})
}

// bench is a running writer in a namespace of its own.
type bench struct {
	testing.TB
	*W
	ns     string
	client kubernetes.Interface // an independent client
	jobs   rest.Interface
	stop   func()
}

// newBench creates a writer on the shared cluster; run starts it.
func newBench(t testing.TB, change func(*Config)) *bench {
	return newBenchOn(t, localtest.Shared(t), change)
}

func newBenchOn(t testing.TB, cluster *localcluster.Cluster, change func(*Config)) *bench {
	t.Helper()
	cfg := Config{REST: cluster.RESTConfig(), Scheme: scheme.Scheme, StatusInterval: time.Hour}
	if change != nil {
		change(&cfg)
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, W: w}
	if b.client, err = kubeclient.Clientset(cluster.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if b.jobs, err = kubeclient.ForGroupVersion(cluster.RESTConfig(), nil, batchv1alpha1.GroupVersion, scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	ns, err := b.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "writer-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.ns = ns.Name
	return b
}

func (b *bench) run() *bench {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(b.stop)
	return b
}

func (b *bench) flush() {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	if err := b.Flush(ctx); err != nil {
		b.Fatalf("flush: %v", err)
	}
}

func (b *bench) pod(name string, owner types.UID) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64)},
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Name: "job", UID: owner, Controller: new(true),
		}}
	}
	return p
}

func (b *bench) createdPod(p *corev1.Pod) *corev1.Pod {
	b.Helper()
	p, err := b.client.CoreV1().Pods(b.ns).Create(b.Context(), p, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func (b *bench) createdJob(name string) *batchv1alpha1.Job {
	b.Helper()
	job := &batchv1alpha1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: name},
		Spec:       batchv1alpha1.JobSpec{Tasks: []batchv1alpha1.TaskSpec{{Name: "t"}}},
	}
	got := &batchv1alpha1.Job{}
	if err := b.jobs.Post().Namespace(b.ns).Resource("jobs").Body(job).Do(b.Context()).Into(got); err != nil {
		b.Fatal(err)
	}
	return got
}

func (b *bench) job(name string) *batchv1alpha1.Job {
	b.Helper()
	got := &batchv1alpha1.Job{}
	if err := b.jobs.Get().Namespace(b.ns).Resource("jobs").Name(name).Do(b.Context()).Into(got); err != nil {
		b.Fatal(err)
	}
	return got
}

// requests returns the number of requests that the writer has made for verb and resource.
func (b *bench) requests(verb, resource string) int {
	n := 0
	for c, k := range b.Counts() {
		if c.Verb == verb && c.Resource == resource {
			n += k
		}
	}
	return n
}

// outcomes collects the outcomes of writes.
type outcomes struct {
	mu    sync.Mutex
	ended map[string]int
	errs  map[string]error
	objs  map[string]Object
	order []string
}

func newOutcomes() *outcomes {
	return &outcomes{ended: map[string]int{}, errs: map[string]error{}, objs: map[string]Object{}}
}

func (o *outcomes) of(name string) func(Object, error) {
	return func(obj Object, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.ended[name]++
		o.errs[name] = err
		o.objs[name] = obj
		o.order = append(o.order, name)
	}
}

func (o *outcomes) ofErr(name string) func(error) {
	return func(err error) { o.of(name)(nil, err) }
}

// allOnce fails the test unless n writes have ended, each once and without an error.
func (o *outcomes) allOnce(t testing.TB, n int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ended) != n {
		t.Errorf("%d writes ended, want %d", len(o.ended), n)
	}
	for name, times := range o.ended {
		if times != 1 || o.errs[name] != nil {
			t.Errorf("%s ended %d times, with %v", name, times, o.errs[name])
		}
	}
}

var test = Meta{Owner: "test", Reason: "test"}

func TestCreate(t *testing.T) {
	b := newBench(t, nil).run()
	ours := b.createdPod(b.pod("ours", "uid-1"))
	b.createdPod(b.pod("others", "uid-2"))
	b.createdPod(b.pod("nobodys", ""))
	creator := b.pod("creator", "")
	creator.Annotations = map[string]string{CreatorAnnotation: "me"}
	b.createdPod(creator)
	b.createdPod(b.pod("found", "uid-1"))
	leaving := b.pod("leaving", "uid-1")
	leaving.Finalizers = []string{"example.com/hold"}
	b.createdPod(leaving)
	if err := b.client.CoreV1().Pods(b.ns).Delete(t.Context(), "leaving", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	invalid := b.pod("invalid", "uid-1")
	invalid.Spec.Containers = nil

	o := newOutcomes()
	for _, p := range []*corev1.Pod{
		b.pod("new", "uid-1"), b.pod("ours", "uid-1"), b.pod("others", "uid-1"), b.pod("nobodys", ""), creator.DeepCopy(),
		b.pod("leaving", "uid-1"), invalid,
	} {
		b.Create(test, p, o.of(p.Name))
	}
	brief := test
	brief.MetadataOnly = true
	for _, p := range []*corev1.Pod{b.pod("brief", "uid-1"), b.pod("found", "uid-1")} {
		b.Create(brief, p, o.of(p.Name))
	}
	b.flush()

	for name, want := range map[string]func(error) bool{
		"brief":   func(err error) bool { return err == nil },
		"found":   func(err error) bool { return err == nil },
		"new":     func(err error) bool { return err == nil },
		"ours":    func(err error) bool { return err == nil },
		"others":  apierrors.IsAlreadyExists,
		"nobodys": apierrors.IsAlreadyExists,
		"creator": func(err error) bool { return err == nil },
		"leaving": apierrors.IsAlreadyExists,
		"invalid": apierrors.IsInvalid,
	} {
		if err := o.errs[name]; o.ended[name] != 1 || !want(err) {
			t.Errorf("%s ended %d times with %v", name, o.ended[name], err)
		}
	}
	if got := o.objs["ours"]; got == nil || got.GetUID() != ours.UID {
		t.Errorf("of a pod that was there, got %v, want the one with UID %s", got, ours.UID)
	}
	if got := o.objs["new"].(*corev1.Pod); got.UID == "" || len(got.Spec.Tolerations) == 0 /* admission adds some */ {
		t.Error("a created pod must come back as the server made it")
	}
	if got, ok := o.objs["brief"].(*metav1.PartialObjectMetadata); !ok || got.UID == "" || got.ResourceVersion == "" {
		t.Errorf("of a pod of which only the metadata is wanted, got %+v", o.objs["brief"])
	}
	if got, ok := o.objs["found"].(*corev1.Pod); !ok || got.UID == "" {
		t.Errorf("of a pod that was there and of which only the metadata is wanted, got %+v", o.objs["found"])
	}
}

// TestLongOnesAreWritten checks that requests that are too long for package http2client go through
// Go's client with the same result.
func TestLongOnesAreWritten(t *testing.T) {
	b := newBench(t, nil).run()
	if b.sender.calls == nil {
		t.Fatal("nothing goes through package http2client")
	}
	long := b.pod("long", "uid-1")
	long.Annotations = map[string]string{"example.com/text": strings.Repeat("text ", http2client.BodyMax/4)}
	invalid := long.DeepCopy()
	invalid.Name, invalid.Spec.Containers = "invalid", nil
	o := newOutcomes()
	b.Create(test, long, o.of("long"))
	b.Create(test, invalid, o.of("invalid"))
	b.flush()
	got, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "long", metav1.GetOptions{})
	if err != nil || o.errs["long"] != nil || got.UID != o.objs["long"].GetUID() || !maps.Equal(got.Annotations, long.Annotations) {
		t.Errorf("%v, %v: %.1000v", err, o.errs["long"], got)
	}
	if err := o.errs["invalid"]; !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.containers") {
		t.Errorf("an invalid one: %.1000v", err)
	}
}

func TestBind(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	bind := func(name, node string, uid types.UID) {
		b.Bind(test, Binding{Pod: types.NamespacedName{Namespace: b.ns, Name: name}, UID: uid, Node: node}, o.ofErr(name+" to "+node))
		b.flush()
	}
	p := b.createdPod(b.pod("p", ""))
	bind("p", "n1", p.UID)
	bind("p", "n1", p.UID) // as after a lost answer
	bind("p", "n2", p.UID)
	q := b.createdPod(b.pod("q", ""))
	bind("q", "n1", "another")
	bind("gone", "n1", "")

	if n := o.ended["p to n1"]; n != 2 || o.errs["p to n1"] != nil {
		t.Errorf("binding twice to one node ended %d times, with %v", n, o.errs["p to n1"])
	}
	if err := o.errs["p to n2"]; !apierrors.IsConflict(err) {
		t.Errorf("binding a bound pod elsewhere: %v, want Conflict", err)
	}
	r := b.createdPod(b.pod("r", ""))
	pinned := map[string]string{"cpu.lockstep.dev/result": "x"}
	for _, want := range []map[string]string{pinned, pinned, {"cpu.lockstep.dev/result": "y"}} {
		var got error
		b.Bind(test, Binding{Pod: types.NamespacedName{Namespace: b.ns, Name: "r"}, UID: r.UID, Node: "n1", Annotations: want}, func(err error) { got = err })
		b.flush()
		if (want["cpu.lockstep.dev/result"] == "x") != (got == nil) {
			t.Errorf("binding with annotations %v: %v", want, got)
		}
	}
	live, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "r", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if live.Spec.NodeName != "n1" || live.Annotations["cpu.lockstep.dev/result"] != "x" {
		t.Errorf("the bound pod is on %q with annotations %v", live.Spec.NodeName, live.Annotations)
	}
	if err := o.errs["q to n1"]; !apierrors.IsConflict(err) {
		t.Errorf("binding a pod with another UID: %v, want Conflict", err)
	}
	if err := o.errs["gone to n1"]; !apierrors.IsNotFound(err) {
		t.Errorf("binding no pod: %v, want NotFound", err)
	}
	if q, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "q", metav1.GetOptions{}); err != nil || q.Spec.NodeName != "" {
		t.Errorf("a pod with another UID was bound to %s, %v", q.Spec.NodeName, err)
	}
	_ = q
}

func withRunning(job *batchv1alpha1.Job, running int32) *batchv1alpha1.Job {
	job = job.DeepCopy()
	job.Status.Running = running
	return job
}

func TestStatusCoalesces(t *testing.T) {
	const resource = "jobs.batch.volcano.sh/status"
	b := newBench(t, nil) // with an interval of an hour
	job := b.createdJob("job")
	o := newOutcomes()
	for i := range 10 { // not yet running: all of them wait, and only the last is written
		b.Status(test, withRunning(job, int32(i)), false, o.of(fmt.Sprint("early ", i)))
	}
	b.run()
	b.flush()
	o.allOnce(t, 10)
	if n := b.requests("update", resource); n != 1 {
		t.Errorf("10 statuses at once made %d writes, want 1", n)
	}
	if got := b.job("job").Status.Running; got != 9 {
		t.Errorf("running is %d, want the latest, 9", got)
	}

	b.Status(test, withRunning(job, 10), false, o.of("held back"))
	b.Status(test, withRunning(job, 11), true, o.of("urgent"))
	b.flush()
	o.allOnce(t, 12)
	if n := b.requests("update", resource); n != 2 {
		t.Errorf("%d writes in all, want 2: the urgent one carries the one held back", n)
	}
	got := b.job("job")
	if got.Status.Running != 11 || len(got.Spec.Tasks) != 1 {
		t.Errorf("the job is %+v, want running 11 and its spec", got)
	}
	if n := b.requests("patch", resource); n != 0 {
		t.Errorf("%d patches: the version of the last write is known, so a PUT must do", n)
	}
}

func TestAStatusThatTurnsUrgentGoesAhead(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Fixed = 1 })
	waiting, ended := b.createdJob("waiting"), b.createdJob("ended")
	o := newOutcomes()
	b.Status(test, withRunning(waiting, 1), false, o.of("waiting"))
	b.Status(test, withRunning(ended, 1), false, o.of("ended: early"))
	b.Status(test, withRunning(ended, 2), true, o.of("ended: urgent"))
	b.run()
	b.flush()
	o.allOnce(t, 3)
	if o.order[2] != "waiting" {
		t.Errorf("the statuses were written in the order %q", o.order)
	}
	if n := b.requests("update", "jobs.batch.volcano.sh/status"); n != 2 {
		t.Errorf("%d writes, want one for each job", n)
	}
}

func TestWhatBeginsSomethingGoesAfterWhatHasBegun(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Fixed = 1 })
	ended := b.createdJob("ended")
	o := newOutcomes()
	b.Create(Meta{Owner: "new", Reason: "test", StartsWork: true}, b.pod("first", ""), o.of("begin"))
	b.Status(test, withRunning(ended, 1), true, o.of("end"))
	b.Create(Meta{Owner: "old", Reason: "test"}, b.pod("next", ""), o.of("go on"))
	b.run()
	b.flush()
	o.allOnce(t, 3)
	if want := []string{"go on", "end", "begin"}; !slices.Equal(o.order, want) {
		t.Errorf("written in the order %q, want %q", o.order, want)
	}
}

func TestStatusOfAnObjectThatChanged(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	job := b.createdJob("job")
	patch := func(name, body string) {
		t.Helper()
		if err := b.jobs.Patch(types.MergePatchType).Namespace(b.ns).Resource("jobs").Name(name).Body([]byte(body)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	patch("job", `{"metadata":{"labels":{"a":"b"}}}`)
	b.Status(test, withRunning(job, 1), false, o.of("changed meanwhile"))
	b.flush()
	if err := o.errs["changed meanwhile"]; !apierrors.IsConflict(err) || o.ended["changed meanwhile"] != 1 {
		t.Errorf("a status made from an older version: %v, want one Conflict", err)
	}
	if got := b.job("job"); got.Status.Running != 0 || got.Labels["a"] != "b" {
		t.Errorf("the job has running %d and labels %v, want 0 and the user's", got.Status.Running, got.Labels)
	}
	b.Status(test, withRunning(b.job("job"), 2), true, o.of("decided anew"))
	// The caller's cache does not show that yet.
	b.Status(test, withRunning(job, 3), true, o.of("after our own"))
	b.flush()
	if errs := errors.Join(o.errs["decided anew"], o.errs["after our own"]); errs != nil {
		t.Error(errs)
	}
	if got := b.job("job"); got.Status.Running != 3 || got.Labels["a"] != "b" {
		t.Errorf("the job has running %d and labels %v, want 3 and the user's", got.Status.Running, got.Labels)
	}

	if err := b.jobs.Delete().Namespace(b.ns).Resource("jobs").Name("job").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	b.Status(test, withRunning(job, 2), true, o.of("deleted"))
	b.flush()
	if err := o.errs["deleted"]; !apierrors.IsNotFound(err) {
		t.Errorf("the status of a deleted job: %v, want NotFound", err)
	}
	b.createdJob("job")
	for _, version := range []string{job.ResourceVersion, ""} {
		old := withRunning(job, 3)
		old.ResourceVersion = version
		b.Status(test, old, true, o.of("another"))
		b.flush()
		if err := o.errs["another"]; !apierrors.IsConflict(err) {
			t.Errorf("the status of a job that is another by now: %v, want Conflict", err)
		}
	}
	if got := b.job("job").Status.Running; got != 0 {
		t.Errorf("the new job has the old one's status, running %d", got)
	}
}

func TestStatusOfABuiltInTypeKeepsTheRest(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	p := b.pod("p", "")
	p.Labels = map[string]string{"a": "b"}
	p = b.createdPod(p)
	p.Labels = nil
	p.Status.Reason = "Tested"
	b.Status(test, p, false, o.of("pod"))
	b.flush()
	o.allOnce(t, 1)
	got := o.objs["pod"].(*corev1.Pod)
	if got.Status.Reason != "Tested" || got.Labels["a"] != "b" {
		t.Errorf("the pod has reason %q and labels %v", got.Status.Reason, got.Labels)
	}
	p.Status.Reason = "Late"
	// The other writer has not written the pod, so it does not know the pod's version.
	other := newBench(t, nil).run()
	other.Status(test, p, true, o.of("late"))
	other.flush()
	if err := o.errs["late"]; !apierrors.IsConflict(err) {
		t.Errorf("a status made from an older version: %v, want a conflict", err)
	}
	p = p.DeepCopy()
	p.UID, p.ResourceVersion = "another", got.ResourceVersion
	other.Status(test, p, true, o.of("another"))
	other.flush()
	if err := o.errs["another"]; !apierrors.IsConflict(err) {
		t.Errorf("a status of a pod with another UID: %v, want a conflict", err)
	}
}

func TestPatchMeansTheObjectWithItsUID(t *testing.T) {
	b := newBench(t, nil).run()
	for kind, data := range map[types.PatchType]string{
		types.MergePatchType:          `{"metadata":{"labels":{"a":"b"}}}`,
		types.StrategicMergePatchType: `{"metadata":{"labels":{"a":"b"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`,
	} {
		o := newOutcomes()
		p := b.createdPod(b.pod("p-"+fmt.Sprintf("%x", len(kind)), ""))
		other := p.DeepCopy()
		other.UID = "another"
		b.Patch(test, other, kind, []byte(data), o.of("other"))
		b.flush()
		if err := o.errs["other"]; !apierrors.IsConflict(err) {
			t.Errorf("%s of another UID: %v, want Conflict", kind, err)
		}
		b.Patch(test, p, kind, []byte(data), o.of("own"))
		b.flush()
		if err := o.errs["own"]; err != nil {
			t.Errorf("%s: %v", kind, err)
		} else if got := o.objs["own"].GetLabels()["a"]; got != "b" {
			t.Errorf("%s: label is %q", kind, got)
		}
	}
}

func TestPatchOfAVersion(t *testing.T) {
	for kind, data := range map[types.PatchType]string{
		types.JSONPatchType:  `[{"op":"add","path":"/metadata/labels","value":{"a":"VALUE"}}]`,
		types.MergePatchType: `{"metadata":{"labels":{"a":"VALUE"}}}`,
	} {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t, nil).run()
			p := b.createdPod(b.pod("p", ""))
			patch := func(version, value string) (Object, error) {
				o := newOutcomes()
				about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "p", UID: p.UID, ResourceVersion: version}}
				b.PatchVersion(test, about, false, []byte(strings.Replace(data, "VALUE", value, 1)), o.of("p"))
				b.flush()
				return o.objs["p"], o.errs["p"]
			}
			next, err := patch(p.ResourceVersion, "2")
			if err != nil || next.GetUID() != p.UID || next.GetResourceVersion() == p.ResourceVersion {
				t.Fatalf("a patch of the version that is there: %v, answered %v", err, next)
			}
			if now, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "p", metav1.GetOptions{}); err != nil || now.Labels["a"] != "2" || now.ResourceVersion != next.GetResourceVersion() {
				t.Errorf("the pod is %v, %v after it", now, err)
			}
			if _, err := patch(p.ResourceVersion, "3"); !apierrors.IsConflict(err) {
				t.Errorf("a patch of an older version: %v, want a conflict", err)
			}
			if _, err := patch(next.GetResourceVersion(), "4"); err != nil {
				t.Errorf("a patch of the version that was answered: %v", err)
			}
		})
	}
}

func TestDelete(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	p := b.createdPod(b.pod("p", ""))
	other := b.createdPod(b.pod("other", ""))
	stale := other.DeepCopy()
	stale.UID = "an-earlier-one"
	b.Delete(test, p, DeleteOptions{}, o.ofErr("p"))
	b.Delete(test, b.pod("none", ""), DeleteOptions{}, o.ofErr("none"))
	b.Delete(test, stale, DeleteOptions{GracePeriodSeconds: new(int64), Propagation: metav1.DeletePropagationBackground}, o.ofErr("stale"))
	b.flush()
	o.allOnce(t, 3)
	list, err := b.client.CoreV1().Pods(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].UID != other.UID {
		t.Errorf("left are %v, %v; want only %q", list.Items, err, other.Name)
	}
}

// TestDeletePods deletes selected pods as another user with an extra attribute.
func TestDeletePods(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	for _, name := range []string{"a", "b", "kept"} {
		p := b.pod(name, "")
		p.Labels = map[string]string{"index": map[string]string{"a": "1", "b": "2", "kept": "10"}[name]}
		b.createdPod(p)
	}
	m := test
	m.As = &Identity{User: "somebody", Groups: []string{"system:masters"}, Extra: map[string]string{"lockstep.dev/run": "UID/1"}}
	b.DeletePods(m, Selection{Namespace: b.ns, Labels: "index>0,index<10", Fields: "status.phase!=Failed"}, o.ofErr("some"))
	b.flush()
	o.allOnce(t, 1)
	list, err := b.client.CoreV1().Pods(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "kept" {
		t.Errorf("left are %v, %v; want only kept", list.Items, err)
	}
	want := Count{Verb: "deletecollection", Resource: "pods", Reason: m.Reason, Code: 200}
	if b.Counts()[want] != 1 {
		t.Errorf("the requests are %v, want one %v", b.Counts(), want)
	}
}

func TestDryRunOfADeletion(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	p := b.createdPod(b.pod("p", ""))
	b.Delete(test, p, DeleteOptions{DryRun: true}, o.ofErr("p"))
	b.Delete(test, b.pod("none", ""), DeleteOptions{DryRun: true}, o.ofErr("none"))
	b.flush()
	if err := o.errs["p"]; err != nil {
		t.Error(err)
	}
	if err := o.errs["none"]; !apierrors.IsNotFound(err) {
		t.Errorf("the dry run of the deletion of no pod: %v, want NotFound", err)
	}
	if _, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestDeleteOfAVersion(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	old := b.createdJob("job")
	if err := b.jobs.Patch(types.MergePatchType).Namespace(b.ns).Resource("jobs").Name("job").Body([]byte(`{"metadata":{"labels":{"a":"b"}}}`)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	b.Delete(test, old, DeleteOptions{Version: old.ResourceVersion}, o.ofErr("old"))
	b.flush()
	if err := o.errs["old"]; !apierrors.IsConflict(err) || o.ended["old"] != 1 {
		t.Errorf("deleting a version that is past: %v, want one Conflict", err)
	}
	b.Delete(test, old, DeleteOptions{Version: b.job("job").ResourceVersion}, o.ofErr("now"))
	b.flush() // deletions of one object may be in flight at the same time
	b.Delete(test, old, DeleteOptions{Version: old.ResourceVersion}, o.ofErr("gone"))
	b.flush()
	if err := errors.Join(o.errs["now"], o.errs["gone"]); err != nil {
		t.Error(err)
	}
}

// TestDeleteOfAVersionOfAnyObject deletes a version without naming the object's UID.
func TestDeleteOfAVersionOfAnyObject(t *testing.T) {
	b := newBench(t, nil).run()
	o := newOutcomes()
	old := b.createdJob("job")
	if err := b.jobs.Patch(types.MergePatchType).Namespace(b.ns).Resource("jobs").Name("job").Body([]byte(`{"metadata":{"labels":{"a":"b"}}}`)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	version := old.ResourceVersion
	old.UID, old.ResourceVersion = "", ""
	b.Delete(test, old, DeleteOptions{Version: version}, o.ofErr("old"))
	b.flush()
	if err := o.errs["old"]; !apierrors.IsConflict(err) || o.ended["old"] != 1 {
		t.Errorf("deleting a version that is past: %v, want one Conflict", err)
	}
	b.Delete(test, old, DeleteOptions{Version: b.job("job").ResourceVersion}, o.ofErr("now"))
	b.flush()
	if err := o.errs["now"]; err != nil {
		t.Error(err)
	}
}

func TestEvents(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxEvents = 3 })
	job := b.createdJob("job")
	for range 5 {
		b.Event(job, corev1.EventTypeNormal, "Started", "it started")
	}
	for i := range 5 {
		b.Event(job, corev1.EventTypeWarning, "Failed", fmt.Sprint("cause ", i))
	}
	b.run()
	b.flush()
	list, err := b.client.CoreV1().Events(b.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=job"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 3 {
		t.Errorf("%d events, want the 3 that were allowed to wait", len(list.Items))
	}
	for _, e := range list.Items {
		if e.InvolvedObject.UID != job.UID || e.InvolvedObject.Kind != "Job" || e.Source.Component != "lockstep" {
			t.Errorf("the event is about %v, from %v", e.InvolvedObject, e.Source)
		}
	}
	if n := b.requests("create", "events"); n != 3 {
		t.Errorf("%d writes, want 3", n)
	}
}

func TestASmallOwnerDoesNotWaitForABigOne(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Fixed = 1 }) // writes end in the order in which they are sent
	o := newOutcomes()
	for i := range 400 {
		b.Create(Meta{Owner: "big", Reason: "test"}, b.pod(fmt.Sprint("big-", i), ""), o.of(fmt.Sprint("big-", i)))
	}
	b.Create(Meta{Owner: "small", Reason: "test"}, b.pod("small", ""), o.of("small"))
	b.run()
	b.flush()
	o.allOnce(t, 401)
	for i, name := range o.order {
		// It waits for one turn of the big owner.
		if name == "small" && i > ownerBatch {
			t.Errorf("the small owner's write ended as number %d of 401", i)
		}
	}
}

func TestStop(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Fixed = 2 })
	job := b.createdJob("job")
	o := newOutcomes()
	const n = 300
	for i := range n {
		b.Create(test, b.pod(fmt.Sprint(i), ""), o.of(fmt.Sprint(i)))
	}
	b.Status(test, withRunning(job, 1), false, o.of("status"))
	b.Status(test, withRunning(job, 2), false, o.of("status 2"))
	b.run()
	b.stop()
	stopped := 0
	for name, times := range o.ended {
		if times != 1 {
			t.Errorf("%s ended %d times", name, times)
		}
		switch err := o.errs[name]; {
		case errors.Is(err, ErrStopped):
			stopped++
		case err != nil:
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(o.ended) != n+2 {
		t.Errorf("%d of %d writes ended", len(o.ended), n+2)
	}
	late := make(chan error)
	b.Create(test, b.pod("late", ""), func(_ Object, err error) { late <- err })
	if err := <-late; !errors.Is(err, ErrStopped) {
		t.Errorf("a write after the end: %v, want ErrStopped", err)
	}
}

// faulty spoils a share of the mutating requests on their way to a real server, or the responses on
// their way back.
func faulty(t testing.TB, rnd *rand.Rand) *faultproxy.Proxy {
	p, err := localtest.Proxy(localtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	var mu sync.Mutex
	p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if !r.Write() {
			return f
		}
		mu.Lock()
		defer mu.Unlock()
		switch rnd.IntN(20) {
		case 0:
			f.Lose = faultproxy.ResetConnection
		case 1:
			f.Lose, f.Worked = faultproxy.ResetStream, true
		case 2:
			f.Answer = http.StatusTooManyRequests
		case 3:
			f.Answer = http.StatusInternalServerError
		case 4:
			f.Answer = http.StatusServiceUnavailable
		case 5:
			f.Answer, f.Worked = http.StatusGatewayTimeout, true
		case 6:
			f.Lose = faultproxy.HalfBody
		}
		return f
	})
	return p
}

func TestLostAnswersAndRefusalsDoNotShow(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := faulty(t, rand.New(rand.NewPCG(seed, 0)))
	b := newBench(t, func(c *Config) {
		c.REST = f.REST(c.REST)
		c.Connections = 1
		c.StatusInterval = time.Nanosecond
	}).run()
	o := newOutcomes()
	const n = 60
	job := b.createdJob("job")
	var chain sync.WaitGroup
	for i := range n {
		name := fmt.Sprint("p-", i)
		chain.Add(1)
		// Each pod is created, bound and, every third, deleted: each step when the step before has
		// ended.
		b.Create(test, b.pod(name, "uid"), func(obj Object, err error) {
			o.of("create "+name)(obj, err)
			if err != nil {
				chain.Done()
				return
			}
			b.Bind(test, Binding{Pod: types.NamespacedName{Namespace: b.ns, Name: name}, UID: obj.GetUID(), Node: "n1"}, func(err error) {
				o.ofErr("bind " + name)(err)
				if err != nil || i%3 > 0 {
					chain.Done()
					return
				}
				b.Delete(test, obj, DeleteOptions{GracePeriodSeconds: new(int64)}, func(err error) {
					o.ofErr("delete " + name)(err)
					chain.Done()
				})
			})
		})
		b.Status(test, withRunning(job, int32(i+1)), false, o.of("status "+name))
	}
	chain.Wait()
	b.flush()
	o.allOnce(t, n+n+n/3+n)
	list, err := b.client.CoreV1().Pods(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != n-n/3 {
		t.Errorf("%d pods, want %d", len(list.Items), n-n/3)
	}
	for _, p := range list.Items {
		if p.Spec.NodeName != "n1" {
			t.Errorf("%s is not bound", p.Name)
		}
	}
	if got := b.job("job").Status.Running; got != n {
		t.Errorf("running is %d, want the last status, %d", got, n)
	}
	injected := f.Faults()
	t.Logf("injected: %v", injected)
	if len(injected) < 4 {
		t.Errorf("only %v were injected", injected)
	}
}

func TestAnOutageLosesNothing(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithConfig(func(c *localcluster.Config) { c.Install = installJobs }))
	b := newBenchOn(t, cluster, nil).run()
	const n, killAfter = 500, 100
	o := newOutcomes()
	job := b.createdJob("job")
	reached := make(chan struct{})
	var ended int
	var mu sync.Mutex
	for i := range n {
		name := fmt.Sprint("p-", i)
		b.Create(Meta{Owner: fmt.Sprint("job/", i%7), Reason: "test"}, b.pod(name, "uid"), func(obj Object, err error) {
			o.of(name)(obj, err)
			mu.Lock()
			defer mu.Unlock()
			if ended++; ended == killAfter {
				close(reached)
			}
		})
	}
	b.Status(test, withRunning(job, 7), false, o.of("status"))
	<-reached
	if err := cluster.Kill(localcluster.APIServer); err != nil {
		t.Fatal(err)
	}
	b.Status(test, withRunning(job, 8), true, o.of("status in the outage"))
	if err := cluster.StartComponent(t.Context(), localcluster.APIServer); err != nil {
		t.Fatal(err)
	}
	b.flush()
	o.allOnce(t, n+2)
	list, err := b.client.CoreV1().Pods(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != n {
		t.Errorf("%d pods, want %d", len(list.Items), n)
	}
	if got := b.job("job").Status.Running; got != 8 {
		t.Errorf("running is %d, want 8", got)
	}
	t.Logf("requests: %v", b.Counts())
}
