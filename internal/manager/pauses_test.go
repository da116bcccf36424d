package manager_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// The test of pauses stops managers, as the kernel, a hypervisor or a debugger may, and lets them
// continue. It is short by default: LOCKSTEP_PAUSES is the number of pauses, LOCKSTEP_SEED repeats
// a run, LOCKSTEP_MANAGER is another program to test.

// Durations of the leases, in seconds since a renewal was received: see leader.go and package
// shard.
const (
	leaderLease = 12 * time.Second
	shardLease  = 10 * time.Second
)

// managers are processes that run the manager, each under a name of its own, which is in its
// User-Agent.
type managers struct {
	*env
	command []string
	dir     string

	mu      sync.Mutex
	ended   bool
	running map[string]*exec.Cmd // by name
	made    int
	group   sync.WaitGroup
}

func startManagers(e *env, n int) *managers {
	e.Helper()
	self, err := os.Executable()
	if err != nil {
		e.Fatal(err)
	}
	if other := os.Getenv("LOCKSTEP_MANAGER"); other != "" {
		self = other
	}
	m := &managers{env: e, command: []string{self}, dir: e.TempDir(), running: map[string]*exec.Cmd{}}
	for range n {
		m.group.Go(m.supervise)
	}
	e.Cleanup(func() {
		m.mu.Lock()
		m.ended = true
		for _, cmd := range m.running {
			_ = cmd.Process.Signal(syscall.SIGCONT)
			_ = cmd.Process.Kill()
		}
		m.mu.Unlock()
		m.group.Wait()
	})
	return m
}

// supervise restarts managers that end, as a Deployment does.
func (m *managers) supervise() {
	for {
		m.mu.Lock()
		if m.ended {
			m.mu.Unlock()
			return
		}
		name := fmt.Sprintf("manager-%02d", m.made)
		m.made++
		cmd, err := m.start(name)
		if err != nil {
			m.mu.Unlock()
			m.Errorf("starting %s: %v", name, err)
			return
		}
		m.running[name] = cmd
		m.mu.Unlock()
		err = cmd.Wait()
		m.mu.Lock()
		delete(m.running, name)
		if !m.ended {
			m.Logf("%s has ended: %v", name, err)
		}
		m.mu.Unlock()
	}
}

func (m *managers) start(name string) (*exec.Cmd, error) {
	program := filepath.Join(m.dir, name)
	if err := os.Symlink(m.command[0], program); err != nil {
		return nil, err
	}
	logs := m.dir
	if kept := os.Getenv("LOCKSTEP_LOGS"); kept != "" {
		logs = kept
	}
	log, err := os.Create(filepath.Join(logs, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, "manager", "--kubeconfig="+m.c.ManagerKubeconfig(), "--metrics-bind-address=", "--health-probe-bind-address=")
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, cmd.Start()
}

var pidOfHolder = regexp.MustCompile(`^[^_]*_([0-9]+)[-_]`)

// leader returns the manager that holds the leader's lease.
func (m *managers) leader() (name string, pid int, err error) {
	lease, err := m.core.CoordinationV1().Leases("lockstep-system").Get(m.Context(), "lockstep-manager", metav1.GetOptions{})
	if err != nil {
		return "", 0, err
	}
	found := pidOfHolder.FindStringSubmatch(ptrTo(lease.Spec.HolderIdentity))
	if found == nil {
		return "", 0, fmt.Errorf("nobody leads: %q", ptrTo(lease.Spec.HolderIdentity))
	}
	pid, _ = strconv.Atoi(found[1])
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, cmd := range m.running {
		if cmd.Process.Pid == pid {
			return name, pid, nil
		}
	}
	return "", 0, fmt.Errorf("process %d, which leads, has ended", pid)
}

func ptrTo(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// follower returns a random manager that does not lead.
func (m *managers) follower(random *rand.Rand, leader string) (name string, pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.running {
		if name != leader {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	name = names[random.IntN(len(names))]
	return name, m.running[name].Process.Pid
}

// load holds the objects that the test has submitted.
type load struct {
	gangs, aborted, workflows, applications []string
}

const pausedWorkflow = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: NAME}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: a, template: step}
      - {name: b, template: step}
    - - {name: c, template: step}
    - - {name: d, template: step}
  - name: step
    metadata: {annotations: {lockstep.dev/sim-duration: 3s}}
    container: {image: a, command: [c]}
`

const pausedApplication = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: NAME}
spec:
  components:
  - name: one
    type: k8s-objects
    properties:
      objects:
      - {apiVersion: v1, kind: ConfigMap, metadata: {name: NAME-one}, data: {a: b}}
      - {apiVersion: v1, kind: ConfigMap, metadata: {name: NAME-two}, data: {a: b}}
  - name: two
    type: k8s-objects
    properties:
      objects:
      - {apiVersion: v1, kind: ConfigMap, metadata: {name: NAME-three}, data: {a: b}}
`

var (
	workflowsResource    = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
	applicationsResource = schema.GroupVersionResource{Group: "core.oam.dev", Version: "v1beta1", Resource: "applications"}
)

const gangSize = 15

// submit adds load: gangs that compete for resources and end, a job that runs until it is aborted,
// workflows and applications.
func (l *load) submit(e *env, round int) {
	e.Helper()
	for i := range 16 {
		name := fmt.Sprintf("gang-%d-%d", round, i)
		e.create(newJob(name, gangSize, "500m", endsAfter(fmt.Sprintf("%dms", 1500+500*(i%4)))))
		l.gangs = append(l.gangs, name)
	}
	name := fmt.Sprintf("endless-%d", round)
	e.create(newJob(name, 2, "100m"))
	l.aborted = append(l.aborted, name)
	apply := func(names *[]string, resource schema.GroupVersionResource, kind, text string, n int) {
		for i := range n {
			name := fmt.Sprintf("%s-%d-%d", kind, round, i)
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "NAME", name)), &u.Object); err != nil {
				e.Fatal(err)
			}
			if _, err := e.dyn.Resource(resource).Namespace(e.ns).Create(e.Context(), u, metav1.CreateOptions{}); err != nil {
				e.Fatal(err)
			}
			*names = append(*names, name)
		}
	}
	apply(&l.workflows, workflowsResource, "workflow", pausedWorkflow, 15)
	apply(&l.applications, applicationsResource, "app", pausedApplication, 12)
}

// done returns an error that names an object that is not in its final state yet, or nil.
func (l *load) done(e *env) error {
	var errs []error
	note := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	list := func(resource schema.GroupVersionResource) map[string]*unstructured.Unstructured {
		out := map[string]*unstructured.Unstructured{}
		all, err := e.dyn.Resource(resource).Namespace(e.ns).List(e.Context(), metav1.ListOptions{})
		if err != nil {
			note("%w", err)
			return out
		}
		for i := range all.Items {
			out[all.Items[i].GetName()] = &all.Items[i]
		}
		return out
	}
	all := list(jobs)
	for _, name := range l.gangs {
		if all[name] == nil {
			note("%s is gone", name)
			continue
		}
		if s := e.asJob(all[name]).Status; s.State.Phase != batch.Completed || s.Succeeded != gangSize || s.Pending+s.Running+s.Failed+s.Unknown+s.Terminating != 0 {
			note("%s is %s", name, asJSON(s))
		}
	}
	for _, name := range l.aborted {
		if all[name] == nil {
			note("%s is gone", name)
			continue
		}
		if s := e.asJob(all[name]).Status; s.State.Phase != batch.Aborted || s.Running+s.Pending+s.Terminating != 0 {
			note("%s is %s", name, asJSON(s))
		}
	}
	all = list(workflowsResource)
	for _, name := range l.workflows {
		if phase, _, _ := unstructured.NestedString(all[name].Object, "status", "phase"); phase != "Succeeded" {
			note("%s is %q", name, phase)
		}
	}
	all = list(applicationsResource)
	for _, name := range l.applications {
		if phase, _, _ := unstructured.NestedString(all[name].Object, "status", "status"); phase != "running" {
			note("%s is %q", name, phase)
		}
	}
	if n := len(errs); n > 5 {
		errs = append(errs[:5], fmt.Errorf("and %d more", n-5))
	}
	return errors.Join(errs...)
}

// audited is a write of a manager in the audit log.
type audited struct {
	Stage, Verb, UserAgent   string
	User                     struct{ Username string }
	ObjectRef                struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus           struct{ Code int }
	RequestReceivedTimestamp metav1.MicroTime
}

func (a *audited) String() string {
	return fmt.Sprintf("%s %s/%s %s at %s, answered %d", a.Verb, a.ObjectRef.Resource, a.ObjectRef.Subresource, a.ObjectRef.Name,
		a.RequestReceivedTimestamp.Format("15:04:05.000"), a.ResponseStatus.Code)
}

// auditedWrites returns the writes of managers, in the order in which they were received.
func auditedWrites(e *env) []audited {
	e.Helper()
	f, err := os.Open(e.c.AuditLogPath())
	if err != nil {
		e.Fatal(err)
	}
	defer f.Close()
	var out []audited
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var a audited
		if json.Unmarshal(lines.Bytes(), &a) == nil && a.Stage == "ResponseComplete" && a.User.Username == localcluster.ManagerUser &&
			slices.Contains([]string{"create", "update", "patch", "delete"}, a.Verb) {
			a.UserAgent, _, _ = strings.Cut(a.UserAgent, " ")
			out = append(out, a)
		}
	}
	if err := lines.Err(); err != nil {
		e.Fatal(err)
	}
	slices.SortStableFunc(out, func(a, b audited) int {
		return a.RequestReceivedTimestamp.Compare(b.RequestReceivedTimestamp.Time)
	})
	return out
}

// witness checks the audit log: no manager wrote after its lease had lapsed, or wrote the leader's
// objects while another one led, and no pod was created twice.
func witness(e *env) (writes int) {
	e.Helper()
	leads, shares := map[string]time.Time{}, map[string]time.Time{} // by manager: the last renewal
	leader := ""
	pods := map[string]int{}
	late := map[string][]string{}
	for _, a := range auditedWrites(e) {
		at, who := a.RequestReceivedTimestamp.Time, a.UserAgent
		ok := a.ResponseStatus.Code/100 == 2
		if a.ObjectRef.Resource == "leases" {
			switch {
			case !ok || a.Verb == "delete":
			case a.ObjectRef.Name == "lockstep-manager":
				leads[who], leader = at, who
			case strings.HasPrefix(a.ObjectRef.Name, "lockstep-shard-") && a.Verb != "delete":
				shares[who] = at
			}
			continue
		}
		if a.ObjectRef.Namespace != e.ns || leads[who].IsZero() && shares[who].IsZero() {
			continue
		}
		writes++
		sinceRenewal := at.Sub(leads[who])
		leads := sinceRenewal < leaderLease
		switch leaders := a.ObjectRef.Resource == "jobs" || a.ObjectRef.Subresource == "binding" ||
			strings.HasPrefix(a.ObjectRef.Name, "gang-") || strings.HasPrefix(a.ObjectRef.Name, "endless-"); {
		case !leads && (leaders || at.Sub(shares[who]) >= shardLease):
			late[who] = append(late[who], fmt.Sprintf("%s, %s after it last renewed the leader's", &a, sinceRenewal))
		case leaders && leader != who:
			late[who] = append(late[who], a.String()+" while "+leader+" leads")
		}
		if a.ObjectRef.Resource == "pods" && a.ObjectRef.Subresource == "" && a.Verb == "create" && a.ResponseStatus.Code == 201 {
			pods[a.ObjectRef.Name]++
		}
	}
	for who, what := range late {
		e.Errorf("%s made %d writes without a lease, first %s, last %s", who, len(what), what[0], what[len(what)-1])
	}
	twice, most := 0, ""
	for name, n := range pods {
		if n > 1 {
			if twice++; most == "" || n > pods[most] {
				most = name
			}
		}
	}
	if twice > 0 {
		e.Errorf("%d of %d pods were made more than once, %s %d times", twice, len(pods), most, pods[most])
	}
	return writes
}

func TestManagersArePaused(t *testing.T) {
	t.Parallel()
	times, seed := 3, rand.Uint64()
	var err error
	if s := os.Getenv("LOCKSTEP_PAUSES"); s != "" {
		if times, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv("LOCKSTEP_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOCKSTEP_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{Count: 10, CPU: "8"}),
		localtest.WithApplications())
	e := newEnv(t, cluster)
	m := startManagers(e, 3)
	var l load
	for round := range times {
		pause := 14*time.Second + time.Duration(random.Int64N(int64(6*time.Second)))
		ofLeader := round%3 != 1
		if os.Getenv("LOCKSTEP_PAUSES") != "" {
			pause = 5*time.Second + time.Duration(random.Int64N(int64(40*time.Second)))
			if round%7 == 6 {
				pause = 45*time.Second + time.Duration(random.Int64N(int64(15*time.Second)))
			}
			ofLeader = round%4 != 3
		}
		l.submit(e, round)
		// Some moment during the work.
		at := len(l.gangs) * gangSize * random.IntN(100) / 100
		if from := (len(l.gangs) - 16) * gangSize; at < from {
			at = from + random.IntN(14*gangSize)
		}
		localtest.Eventually(e, fmt.Sprintf("%d pods of gangs are created", at), func() error {
			if n := gangPods(e); n < at {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		var name string
		var pid int
		e.eventually("a leader", func() (err error) { name, pid, err = m.leader(); return err })
		leads := name
		if !ofLeader {
			name, pid = m.follower(random, leads)
		}
		t.Logf("round %d: %s is stopped for %s; %s leads", round, name, pause.Round(time.Millisecond), leads)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		awake := time.After(pause)
		// The user continues meanwhile.
		if _, err := e.core.CoreV1().Pods(e.ns).List(t.Context(), metav1.ListOptions{Limit: 1}); err != nil {
			t.Error(err)
		}
		e.abort(fmt.Sprintf("endless-%d", round))
		<-awake
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		localtest.Eventually(e, "everything has ended as it should", func() error { return l.done(e) })
	}
	t.Logf("%d writes", witness(e))
	for _, p := range e.pods() {
		if p.Status.Phase != corev1.PodSucceeded {
			t.Errorf("pod %s is %s", p.Name, p.Status.Phase)
		}
	}
}

// gangPods returns how many pods of gangs were created so far.
func gangPods(e *env) int {
	n := 0
	for _, call := range localtest.ManagerCalls(e, e.c) {
		if call.Verb == "create" && call.Resource == "pods" && call.Code == 201 && strings.HasPrefix(call.Name, "gang-") {
			n++
		}
	}
	return n
}

// abort aborts a job as soon as it runs.
func (e *env) abort(name string) {
	e.Helper()
	cmd := &bus.Command{
		ObjectMeta:   metav1.ObjectMeta{Namespace: e.ns, Name: "abort-" + name},
		Action:       bus.AbortJobAction,
		TargetObject: &metav1.OwnerReference{APIVersion: batch.GroupVersion.String(), Kind: "Job", Name: name},
	}
	u, err := toUnstructured(cmd, bus.GroupVersion.WithKind("Command"))
	if err == nil {
		_, err = e.dyn.Resource(commands).Namespace(e.ns).Create(e.Context(), u, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		e.Fatal(err)
	}
}
