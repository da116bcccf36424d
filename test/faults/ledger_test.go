package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// ledger follows all pods in the order of the server's versions and collects violations. It watches
// the server without the proxy.
//
// Package analyse checks similar rules for benchmarks, from the audit log. The audit log has
// requests and answers but not the order in which the server executed them. Package analyse
// therefore tolerates what could be explained by another order between request and answer, assumes
// one size for all deleted pods, and knows only jobs with a fixed number of pods. The ledger has
// the server's own order, each pod's size, restarts and workflows.
type ledger struct {
	mu   sync.Mutex
	live map[types.UID]*corev1.Pod // pods that have a node and are not over
	// uids holds the UIDs that had a name, by namespace and name.
	uids       map[string]map[string]map[types.UID]bool
	violations map[string][]string // by namespace
	// begun is the number of pods that each gang has had, by namespace and name. Pods that are over
	// count, too: while no manager runs, the first pod may end before the others are created. If
	// roomKept is true, the ledger checks that gangs that have begun keep room for their missing
	// pods.
	begun    map[string]int
	roomKept bool
	listed   func()
}

// checkRoomKept makes the ledger check that a gang that has begun keeps room for its missing pods,
// also while no manager runs.
func (l *ledger) checkRoomKept() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roomKept = true
}

func keepLedger(t testing.TB, core kubernetes.Interface) *ledger {
	t.Helper()
	l := &ledger{live: map[types.UID]*corev1.Pod{}, uids: map[string]map[string]map[types.UID]bool{}, violations: map[string][]string{},
		begun: map[string]int{}}
	listed := make(chan struct{})
	l.listed = sync.OnceFunc(func() { close(listed) })
	pods := cache.NewListWatchFromClient(core.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.Everything())
	reflector := cache.NewReflectorWithOptions(pods, &corev1.Pod{}, l, cache.ReflectorOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { reflector.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	select {
	case <-listed:
	case <-t.Context().Done():
		t.Fatal("the pods could not be listed")
	}
	return l
}

// Add is called by a reflector in the order of the server's versions. With Update, Delete, Replace
// and Resync it makes the ledger a cache.ReflectorStore.
func (l *ledger) Add(o any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.see(o.(*corev1.Pod), true)
	return nil
}

// Update is part of cache.ReflectorStore.
func (l *ledger) Update(o any) error { return l.Add(o) }

// Delete is part of cache.ReflectorStore.
func (l *ledger) Delete(o any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, o.(*corev1.Pod).UID)
	return nil
}

// Replace takes a new list, which comes after the API server was killed. The order of the changes
// in it is not known. So pods that are over or gone free their room first, and a gang may have
// begun at any moment in between.
func (l *ledger) Replace(list []any, _ string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.live
	l.live = map[types.UID]*corev1.Pod{}
	for _, o := range list {
		if p := o.(*corev1.Pod); before[p.UID] != nil && !over(p) {
			l.live[p.UID] = p
		}
	}
	for _, o := range list {
		l.see(o.(*corev1.Pod), false)
	}
	l.listed()
	return nil
}

// Resync is part of cache.ReflectorStore.
func (l *ledger) Resync() error { return nil }

// see records a pod's present state. ordered is true if the ledger has seen everything that
// happened before it.
func (l *ledger) see(p *corev1.Pod, ordered bool) {
	if ofReplicaSet(p) {
		return
	}
	names := l.uids[p.Namespace]
	if names == nil {
		names = map[string]map[types.UID]bool{}
		l.uids[p.Namespace] = names
	}
	if names[p.Name] == nil {
		names[p.Name] = map[types.UID]bool{}
	}
	if gang := p.Labels[batch.JobNameKey]; strings.HasPrefix(gang, "gang-") && !names[p.Name][p.UID] {
		l.begun[p.Namespace+"/"+gang]++
	}
	names[p.Name][p.UID] = true
	if p.Spec.NodeName == "" || over(p) {
		delete(l.live, p.UID)
		return
	}
	if l.live[p.UID] == nil {
		l.begins(p, ordered)
	}
	l.live[p.UID] = p
}

// begins checks the rules for a pod that gets its node.
func (l *ledger) begins(p *corev1.Pod, ordered bool) {
	free := map[string]int64{}
	for i := range nodes {
		free[fmt.Sprintf("node-%04d", i)] = nodeCPUs * 1000
	}
	gang := p.Labels[batch.JobNameKey]
	for _, other := range l.live {
		free[other.Spec.NodeName] -= cpu(other)
		if p.Labels["under"] == "lock" && other.Labels["under"] == "lock" && p.Namespace == other.Namespace {
			l.violate(p, "pods %s and %s are under one lock at a time", p.Name, other.Name)
		}
	}
	if free[p.Spec.NodeName] < cpu(p) {
		l.violate(p, "pod %s overcommits node %s: %dm of CPU are free, beside %s", p.Name, p.Spec.NodeName, free[p.Spec.NodeName], l.others())
	}
	if strings.HasPrefix(gang, "gang-") && l.begun[p.Namespace+"/"+gang] == 1 && ordered {
		room := int64(0)
		for _, m := range free {
			room += m / cpu(p)
		}
		if room < gangPods {
			l.violate(p, "gang %s begins with %s where %d of its %d pods have room, beside %s", gang, p.Name, room, gangPods, l.others())
		}
	}
	if l.roomKept && ordered {
		free[p.Spec.NodeName] -= cpu(p)
		l.keepsRoom(p, free)
	}
}

// keepsRoom checks that after a pod got its node, the free room is enough for the missing pods of
// gangs.
func (l *ledger) keepsRoom(p *corev1.Pod, free map[string]int64) {
	room := 0
	for _, m := range free {
		room += int(max(0, m) / gangPodCPU)
	}
	lacking, lack := 0, []string{}
	for gang, n := range l.begun {
		if n < gangPods {
			lacking += gangPods - n
			lack = append(lack, fmt.Sprintf("%s lacks %d", gang, gangPods-n))
		}
	}
	if room < lacking {
		l.violate(p, "pod %s leaves room for %d pods of gangs that have begun: %s; beside it are %s", p.Name, room, strings.Join(lack, ", "), l.others())
	}
}

// others lists the pods that take room, by node.
func (l *ledger) others() string {
	var out []string
	for _, p := range l.live {
		if m := cpu(p); m > 0 {
			out = append(out, fmt.Sprintf("%s/%s/%s of %dm since version %s", p.Spec.NodeName, p.Namespace, p.Name, m, p.ResourceVersion))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// gangPods is the minimum of the gangs in testdata, which are the jobs whose name begins with
// "gang-". gangPodCPU is the CPU request of each of their pods, in thousandths of a CPU.
const (
	gangPods   = 5
	gangPodCPU = 2000
)

func (l *ledger) violate(p *corev1.Pod, format string, args ...any) {
	l.violations[p.Namespace] = append(l.violations[p.Namespace], fmt.Sprintf("version %s: ", p.ResourceVersion)+fmt.Sprintf(format, args...))
}

func cpu(p *corev1.Pod) (milli int64) {
	for i := range p.Spec.Containers {
		milli += p.Spec.Containers[i].Resources.Requests.Cpu().MilliValue()
	}
	return milli
}

func over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func ofReplicaSet(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "ReplicaSet" })
}

// created returns the number of pods that existed under each name of a namespace.
func (l *ledger) created(ns string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int{}
	for name, uids := range l.uids[ns] {
		out[name] = len(uids)
	}
	return out
}

// check returns the violations in a namespace. made is the number of pods under each name without
// faults.
func (l *ledger) check(ns string, made map[string]int) []string {
	created := l.created(ns)
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Clone(l.violations[ns])
	for _, name := range slices.Sorted(maps.Keys(created)) {
		if n := created[name]; n > made[name] {
			out = append(out, fmt.Sprintf("pod %s was created %d times, without faults %d", name, n, made[name]))
		}
	}
	return out
}
