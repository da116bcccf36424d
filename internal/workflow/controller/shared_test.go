package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// mixed maps names to workflows of many kinds.
var mixed = map[string]string{
	"chain": `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: a, template: say, arguments: {parameters: [{name: text, value: one}]}}
  - - {name: b, template: say, arguments: {parameters: [{name: text, value: "{{steps.a.outputs.result}}+"}]}}
  - - {name: c, template: say, arguments: {parameters: [{name: text, value: "{{steps.b.outputs.result}}+"}]}}
  - - {name: d, template: say, arguments: {parameters: [{name: text, value: "{{steps.c.outputs.result}}+"}]}}
`,
	"dag": `
entrypoint: main
onExit: quick
templates:
- name: main
  dag:
    failFast: false
    tasks:
    - {name: a, template: hello}
    - {name: b, template: fail, depends: a}
    - {name: c, template: say, depends: a, withItems: [x, y, z], arguments: {parameters: [{name: text, value: "{{item}}"}]}}
    - {name: d, template: quick, depends: "b.Failed && c"}
`,
	"retry": `
entrypoint: main
templates:
- name: main
  retryStrategy: {limit: "3"}
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-exit-code: "{{=retries == '2' ? '0' : '1'}}"}}
  container: {image: a, command: [c]}
`,
	"lock": `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: before, template: quick}
  - - {name: held, template: locked}
- name: locked
  synchronization: {mutexes: [{name: only}]}
  metadata: {labels: {under: lock}, annotations: {lockstep.dev/sim-duration: 50ms}}
  container: {image: a, command: [c]}
`,
	"gc": `
entrypoint: main
podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}
templates:
- name: main
  steps:
  - - {name: a, template: quick}
    - {name: b, template: fail, continueOn: {failed: true}}
  - - {name: c, template: quick}
`,
}

// ledger records all pods of a namespace.
type ledger struct {
	mu     sync.Mutex
	uids   map[string]map[types.UID]bool // by pod name
	locked map[types.UID]bool            // holds the lock and has not ended
	most   int
}

func (e *env) keepLedger() *ledger {
	e.Helper()
	l := &ledger{uids: map[string]map[types.UID]bool{}, locked: map[types.UID]bool{}}
	factory := informers.NewSharedInformerFactoryWithOptions(e.core, 0, informers.WithNamespace(e.ns))
	informer := factory.Core().V1().Pods().Informer()
	see := func(p *corev1.Pod, gone bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.uids[p.Name] == nil {
			l.uids[p.Name] = map[types.UID]bool{}
		}
		l.uids[p.Name][p.UID] = true
		if p.Labels["under"] != "lock" {
			return
		}
		if l.locked[p.UID] = true; gone || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			delete(l.locked, p.UID)
		}
		l.most = max(l.most, len(l.locked))
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { see(o.(*corev1.Pod), false) },
		UpdateFunc: func(_, o any) { see(o.(*corev1.Pod), false) },
		DeleteFunc: func(o any) {
			if p, ok := o.(*corev1.Pod); ok {
				see(p, true)
			}
		},
	})
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	e.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.WaitForCacheSync(ctx.Done())
	return l
}

// check checks the invariants of the run.
func (l *ledger) check(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, uids := range l.uids {
		if len(uids) > 1 {
			t.Errorf("pod %s was created %d times", name, len(uids))
		}
	}
	if l.most > 1 {
		t.Errorf("%d pods were under the same mutex at a time", l.most)
	}
}

func (l *ledger) pods() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.uids)
}

// submitMixed creates workflows of all kinds and returns their names by kind.
func (e *env) submitMixed(each int, prefix string) map[string][]string {
	e.Helper()
	names := map[string][]string{}
	for i := range each {
		for _, kind := range slices.Sorted(maps.Keys(mixed)) {
			name := fmt.Sprintf("%s%s-%d", prefix, kind, i)
			e.submit(name, strings.TrimSpace(mixed[kind])+"\n"+strings.TrimPrefix(stepTemplates, "\n"))
			names[kind] = append(names[kind], name)
		}
	}
	return names
}

// endAlike waits until the workflows are over and compares them with the same workflows run
// undisturbed.
func (e *env) endAlike(names, undisturbed map[string][]string) {
	e.Helper()
	for kind, list := range names {
		like := e.until(undisturbed[kind][0], over)
		for _, name := range list {
			w := e.untilWithin(time.Minute, name, over)
			if w.Status.Phase != like.Status.Phase {
				e.Errorf("%s is %s, without disturbance %s: %s", name, w.Status.Phase, like.Status.Phase, w.Status.Message)
			}
			if got, want := withoutIDs(table(w)), withoutIDs(table(like)); got != want {
				e.Errorf("the nodes of %s are\n%s\nwithout disturbance\n%s", name, got, want)
			}
			if s := w.Status.Synchronization; s != nil && s.Mutex != nil && len(s.Mutex.Holding)+len(s.Mutex.Waiting) > 0 {
				e.Errorf("%s is over and has locks: %+v", name, s.Mutex)
			}
		}
	}
}

func withoutIDs(s string) string {
	out := strings.Fields(s)
	for i, word := range out {
		if strings.Count(word, "-") > 1 {
			out[i] = "ID"
		}
	}
	return strings.Join(out, " ")
}

func over(w *wf.Workflow) error {
	if !w.Status.Phase.Completed() {
		return errors.New("it is not over")
	}
	return nil
}

func (e *env) untilWithin(limit time.Duration, name string, ok func(*wf.Workflow) error) *wf.Workflow {
	e.Helper()
	var w *wf.Workflow
	var last error
	err := wait.PollUntilContextTimeout(e.Context(), 50*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		if w, last = e.get(name); last == nil {
			last = ok(w)
		}
		return last == nil, nil
	})
	if err != nil {
		e.Errorf("workflow %s: %v; %s %q\n%s", name, last, w.Status.Phase, w.Status.Message, table(w))
		for _, p := range e.pods(name) {
			e.Errorf("pod %s is %s on %q since %v, deleted %v", p.Name, p.Status.Phase, p.Spec.NodeName, p.CreationTimestamp, p.DeletionTimestamp)
		}
		e.logOf(name)
		e.FailNow()
	}
	return w
}

// logOf returns the managers' log lines about a workflow.
func (e *env) logOf(workflow string) {
	data, err := os.ReadFile(filepath.Join(e.c.Dir(), "logs", string(localcluster.Manager)+".log"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, e.ns+"/"+workflow+" ") || strings.Contains(line, "managing") {
			e.Log(strings.TrimSpace(line))
		}
	}
}

// process is a manager in its own process.
type process struct {
	*exec.Cmd
	once sync.Once
}

func (e *env) startManager(arguments ...string) *process {
	e.Helper()
	self, err := os.Executable()
	if err != nil {
		e.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self, append([]string{"manager", "--kubeconfig", e.c.ManagerKubeconfig(), "--metrics-bind-address=",
		"--health-probe-bind-address="}, arguments...)...)}
	if testing.Verbose() {
		p.Stderr = os.Stderr
	}
	if err := p.Start(); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(p.kill)
	return p
}

// kill kills the process without warning.
func (p *process) kill() {
	p.once.Do(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
}

// TestManagersShareAndTakeOver has three managers share workflows and kills the leader: the others
// take over its share, and one of them the lead.
func TestManagersShareAndTakeOver(t *testing.T) {
	t.Parallel()
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{Count: 8, Pods: 500}), localtest.WithInstall())
	e := newEnv(t, cluster)
	first := e.startManager()
	undisturbed := e.submitMixed(1, "u-")
	for _, names := range undisturbed {
		e.until(names[0], over)
	}
	l := e.keepLedger()
	e.startManager()
	e.startManager()
	// Pods of managers that do not lead are created first and bound later.
	e.eventually("managers that do not lead do some of the work", func() error {
		if sum(managerCalls(t, cluster, e.ns), "create") > 0 && managerCalls(t, cluster, e.ns)["pods/binding create"] > 0 {
			return nil
		}
		name := fmt.Sprintf("w-%d", l.pods())
		if _, err := e.get(name); err != nil {
			e.submit(name, "entrypoint: quick\ntemplates:"+stepTemplates)
		}
		return errors.New("no pod was bound")
	})
	for i := range 4 { // the managers share crons too
		e.create("cronworkflows", fmt.Sprintf("cron-%d", i), cronSpec)
	}
	e.everyCronStarts("before")
	names := e.submitMixed(4, "")
	first.kill()
	killed := time.Now()
	more := e.submitMixed(2, "after-")
	e.endAlike(names, undisturbed)
	e.endAlike(more, undisturbed)
	e.everyCronStarts("after")
	t.Logf("all workflows were over %v after a manager was killed", time.Since(killed).Round(100*time.Millisecond))
	l.check(t)
}

// cronSpec starts a workflow each second, which ends at once.
const cronSpec = `
spec:
  schedules: ["@every 1s"]
  workflowSpec: {entrypoint: main, templates: [{name: main, steps: [[]]}]}
`

// everyCronStarts waits until each of the four crons has started a workflow after now.
func (e *env) everyCronStarts(when string) {
	e.Helper()
	since := metav1.NewTime(time.Now())
	e.eventually("every cron starts workflows "+when, func() error {
		for i := range 4 {
			cron := &wf.CronWorkflow{}
			if err := e.argo.Get().Namespace(e.ns).Resource("cronworkflows").Name(fmt.Sprintf("cron-%d", i)).Do(e.Context()).Into(cron); err != nil {
				return err
			}
			if last := cron.Status.LastScheduledTime; last == nil || !last.After(since.Time) {
				return fmt.Errorf("cron %d last did at %v, %v", i, last, cron.Status.Conditions)
			}
		}
		return nil
	})
}
