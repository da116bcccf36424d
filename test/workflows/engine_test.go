package workflows

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/simnode"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/pods"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// TestEngine runs every case on the engine, with simulated pods and time.
func TestEngine(t *testing.T) {
	total := 0
	for _, f := range load(t) {
		total += len(f.cases)
		for _, c := range f.cases {
			t.Run(c.name, func(t *testing.T) {
				w := newWorld(t, c)
				for _, action := range c.actions {
					w.act(strings.Fields(action))
				}
				w.play(func() bool { return false })
				got := table(w.run.Workflow)
				if !w.run.Workflow.Status.Phase.Completed() {
					t.Errorf("nothing is left to happen, and it is not done")
				}
				for _, fault := range contractFaults(w.run.Workflow) {
					t.Error(fault)
				}
				if *rewrite {
					c.want = got
				} else if got != c.want {
					t.Errorf("got\n%s\nwant\n%s", got, c.want)
				}
			})
		}
		if *rewrite {
			if err := os.WriteFile(f.path, []byte(f.text()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if total < 150 {
		t.Errorf("only %d cases", total)
	}
}

// world simulates the environment of the engine.
type world struct {
	*testing.T
	c      *testCase
	now    time.Time
	run    *engine.Run
	pods   map[string]engine.PodState // by node id
	queue  []happening
	wake   time.Time
	locks  *locks.Table
	caches map[string]string
}

// happening is a future change of a pod's state.
type happening struct {
	at    time.Time
	state engine.PodState
}

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func newWorld(t *testing.T, c *testCase) *world {
	w := &world{T: t, c: c, now: start, pods: map[string]engine.PodState{}, caches: map[string]string{}}
	w.locks = locks.New(func(_, configMap, key string) (int, error) {
		cm := c.configMaps[configMap]
		if cm == nil {
			return 0, fmt.Errorf("ConfigMap default/%s: configmaps %q not found", configMap, configMap)
		}
		return strconv.Atoi(cm.Data[key])
	})
	own := c.workflow.DeepCopy()
	own.Namespace, own.UID, own.CreationTimestamp = "default", "0001", metav1.NewTime(start)
	w.run = engine.New(own, w.config())
	w.step()
	return w
}

func (w *world) config() engine.Config {
	return engine.Config{Library: (*library)(w.c), Evaluate: template.InProcess()}
}

type library testCase

func (l *library) Spec(cluster bool, name string) (*wf.WorkflowSpec, bool) {
	spec, found := l.libraries[map[bool]string{false: "namespaced/", true: "cluster/"}[cluster]+name]
	return spec, found
}

func (l *library) ConfigMapKey(name, key string) (string, bool) {
	cm := l.configMaps[name]
	if cm == nil {
		return "", false
	}
	value, found := cm.Data[key]
	return value, found && l.ConfigMap(name)
}

func (l *library) ConfigMap(name string) bool {
	cm := l.configMaps[name]
	return cm != nil && cm.Labels[wf.LabelConfigMapType] != ""
}

// play runs the simulation until done returns true, the workflow completes, or no change is left.
func (w *world) play(done func() bool) {
	for turn := 0; !done() && !w.run.Workflow.Status.Phase.Completed(); turn++ {
		if turn > 10_000 {
			w.Fatal("it goes on for ever")
		}
		switch {
		case len(w.queue) > 0 && (w.wake.IsZero() || !w.queue[0].at.After(w.wake)):
			next := w.queue[0]
			w.queue = w.queue[1:]
			w.now = next.at
			w.pods[next.state.NodeID] = next.state
			w.step(next.state)
		case !w.wake.IsZero():
			w.now = w.wake
			w.step()
		default:
			return
		}
	}
}

// step lets the engine take a step, does what the engine asks for, and checks that a restart
// changes nothing.
func (w *world) step(events ...engine.Event) {
	result := w.run.Step(w.now, events...)
	w.wake = result.Wake
	for _, d := range result.Delete {
		w.queue = slices.DeleteFunc(w.queue, func(h happening) bool { return h.state.NodeID == d.NodeID })
	}
	for _, c := range result.Create {
		if _, twice := w.pods[c.NodeID]; twice {
			w.Errorf("the pod of %s is made twice", c.NodeName)
		}
		w.pods[c.NodeID] = engine.PodState{NodeID: c.NodeID, Phase: corev1.PodPending}
		if n := w.run.Workflow.Status.Nodes[c.NodeID]; c.PodName != clientPodName(w.c.name, &n) {
			w.Errorf("the pod of %s is %s, and clients look for %s", c.NodeName, c.PodName, clientPodName(w.c.name, &n))
		}
		w.life(c)
	}
	var answers []engine.Event
	for _, s := range result.Stores {
		w.caches[s.ConfigMap+"/"+s.Key] = s.Entry()
	}
	for _, l := range result.Lookups {
		text, found := w.caches[l.ConfigMap+"/"+l.Key]
		answers = append(answers, l.Answer(text, found))
	}
	for _, l := range result.Locks {
		answers = append(answers, engine.LockState(w.locks.Acquire(l)))
	}
	for _, holder := range result.Unlock {
		for _, s := range w.locks.Release(holder) {
			answers = append(answers, engine.LockState(s))
		}
	}
	if len(answers) > 0 {
		w.step(answers...)
		return
	}
	w.restart()
}

// life plans the phases of a pod.
func (w *world) life(c engine.CreatePod) {
	notes := c.Template.Metadata.Annotations
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.PodName, Annotations: map[string]string{wf.AnnotationNodeID: c.NodeID}}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = "10.0.0.1"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Spec.NodeName = "node"
	names := []string{pods.MainContainer}
	if c.Template.ContainerSet != nil {
		names = nil
		for i := range c.Template.ContainerSet.Containers {
			names = append(names, c.Template.ContainerSet.Containers[i].Name)
		}
	}
	set := func(state corev1.ContainerState) {
		pod.Status.ContainerStatuses = nil
		for _, name := range names {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: state})
		}
	}
	set(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	w.at(w.now.Add(10*time.Millisecond), pods.Observe(pod, nil))
	if notes[simnode.AnnotationDuration] == "" {
		return
	}
	d, err := time.ParseDuration(notes[simnode.AnnotationDuration])
	if err != nil {
		w.Fatalf("%s: %v", c.NodeName, err)
	}
	code, err := strconv.Atoi(cmp.Or(notes[simnode.AnnotationExitCode], "0"))
	if err != nil {
		w.Fatalf("%s: %v", c.NodeName, err)
	}
	pod = pod.DeepCopy()
	pod.Status.Phase, pod.Status.Conditions = corev1.PodSucceeded, nil
	if code != 0 {
		pod.Status.Phase = corev1.PodFailed
	}
	set(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(code), Message: notes[simnode.AnnotationMessage]}})
	w.at(w.now.Add(10*time.Millisecond+d), pods.Observe(pod, nil))
}

func (w *world) at(t time.Time, state engine.PodState) {
	w.queue = append(w.queue, happening{t, state})
	slices.SortStableFunc(w.queue, func(a, b happening) int { return a.at.Compare(b.at) })
}

// restart builds a second engine from the status as the API would return it, and checks that it has
// nothing to do.
func (w *world) restart() {
	text, err := json.Marshal(w.run.Workflow)
	if err != nil {
		w.Fatal(err)
	}
	again := &wf.Workflow{}
	if err := json.Unmarshal(text, again); err != nil {
		w.Fatal(err)
	}
	before, _ := json.Marshal(again.Status)
	var states []engine.Event
	for _, s := range w.pods {
		states = append(states, s)
	}
	result := engine.New(again, w.config()).Step(w.now, states...)
	after, _ := json.Marshal(again.Status)
	if len(result.Create) > 0 || string(before) != string(after) {
		w.Errorf("a restart at %s changes something: creates %v\nbefore %s\nafter  %s", w.now.Sub(start), result.Create, before, after)
	}
}

// act performs an action of a user.
func (w *world) act(words []string) {
	spec := &w.run.Workflow.Spec
	switch words[0] {
	case "wait":
		w.play(func() bool { return w.waited(words[1:]) == nil })
		if err := w.waited(words[1:]); err != nil {
			w.Fatalf("%v, and nothing is left to happen; it is\n%s", err, table(w.run.Workflow))
		}
	case "stop":
		spec.Shutdown = wf.ShutdownStop
		w.step()
	case "terminate":
		spec.Shutdown = wf.ShutdownTerminate
		w.step()
	case "suspend":
		yes := true
		spec.Suspend = &yes
		w.step()
	case "unsuspend":
		spec.Suspend = nil
		var events []engine.Event
		for id, n := range w.run.Workflow.Status.Nodes {
			if n.Type == wf.NodeSuspend && !n.Phase.Fulfilled() {
				events = append(events, engine.Resume{NodeID: id})
			}
		}
		w.step(events...)
	case "resume", "fail":
		e := engine.Resume{NodeID: w.id(words[1]), Outputs: map[string]string{}}
		if words[0] == "fail" {
			e.Phase, e.Message = wf.PhaseFailed, strings.Join(words[2:], " ")
		} else {
			for _, word := range words[2:] {
				key, value, _ := strings.Cut(word, "=")
				e.Outputs[key] = value
			}
		}
		w.step(e)
	case "edit":
		if err := yaml.Unmarshal([]byte(strings.Join(words[1:], " ")), spec); err != nil {
			w.Fatal(err)
		}
		w.step()
	case "delete-pod":
		s := engine.PodState{NodeID: w.id(words[1]), Phase: corev1.PodRunning, Gone: true}
		w.pods[s.NodeID] = s
		w.queue = slices.DeleteFunc(w.queue, func(h happening) bool { return h.state.NodeID == s.NodeID })
		w.step(s)
	default:
		w.Fatalf("unknown action %q", words)
	}
}

func (w *world) id(node string) string { return nodeID(w.c.name, node) }

func nodeID(workflow, node string) string {
	if node == "W" {
		return workflow
	}
	return wf.NodeID(workflow, workflow+node)
}

// waited returns an error while the workflow is not as words say: "NODE PHASE", or "workflow
// PHASE".
func (w *world) waited(words []string) error { return waited(w.run.Workflow, words) }

func waited(w *wf.Workflow, words []string) error {
	if words[0] == "workflow" {
		if string(w.Status.Phase) != words[1] {
			return fmt.Errorf("the workflow is %q, not %s", w.Status.Phase, words[1])
		}
		return nil
	}
	n, found := w.Status.Nodes[nodeID(w.Name, words[0])]
	if !found {
		return errors.New("there is no node " + words[0])
	}
	if words[1] == "Daemoned" && n.Daemoned != nil && *n.Daemoned {
		return nil
	}
	if string(n.Phase) != words[1] {
		return fmt.Errorf("node %s is %s, not %s", words[0], n.Phase, words[1])
	}
	return nil
}
