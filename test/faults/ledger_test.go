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

// ledger follows all pods in the order of the server's versions, and says what must not have happened. It watches the server
// without the proxy.
//
// Package analyse checks similar things of benchmarks, from the audit log, which has requests and answers but not the order in which
// the server carried them out: it gives what happened between the two the benefit of the doubt, takes one size for all pods that
// are gone, and knows jobs of a fixed number of pods. The ledger has the server's own order, each pod's size, restarts and workflows.
type ledger struct {
	mu   sync.Mutex
	live map[types.UID]*corev1.Pod // has a node and is not over
	// uids are those that had a name, by namespace and name.
	uids       map[string]map[string]map[types.UID]bool
	violations map[string][]string // by namespace
	// begun is how many pods each gang has had, by namespace and name: the first may be over before the rest is created, if no manager
	// runs meanwhile. roomKept has checked that those which have begun keep room for
	// the rest.
	begun    map[string]int
	roomKept bool
	listed   func()
}

// checkRoomKept has the ledger check that a gang which has begun keeps room for what it lacks, also while no manager runs.
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

// Add, Update, Delete and Replace make the ledger the store of a reflector, which calls them in the order of the server's versions.
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

// Replace takes up a new list, which comes after the API server was killed. In what order its changes happened is not known:
// what is over or gone makes room first, and a gang may have begun at any moment between.
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

// see takes up a pod as it is now. ordered says that everything before it has been seen.
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

// begins checks what a pod that gets its node may not bring about.
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

// keepsRoom checks that what is free after a pod got its node is enough for what gangs lack.
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

// others are the pods that take room, by node.
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

// gangPods is the minimum of the gangs in testdata, jobs whose name begins with gang-; gangPodCPU is what each of their pods asks
// for, in thousandths.
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

// created is how many pods there were under each name of a namespace.
func (l *ledger) created(ns string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int{}
	for name, uids := range l.uids[ns] {
		out[name] = len(uids)
	}
	return out
}

// check returns what was violated: made is how many pods there are under each name without faults.
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
