package manager_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// An operator creates the objects of one workload of four pods, in the order of the operator of that
// name, and replaces pods as it does. The pods have the label "group: NAME" and request half a node each.
type operator struct {
	name  string
	group string // the PodGroup
	// announce creates what the operator creates before it waits for the group's phase Inqueue; nil means
	// that it does not wait.
	announce func(*workload)
	create   func(*workload)
	// start creates the pods that a pod of the workload creates once it runs; nil means none.
	start func(*workload)
	// replace ends one pod or more, and creates what the operator creates then.
	replace func(*workload)
	// waits is part of the condition of the group that does not fit.
	waits string
}

// workload is a workload in a namespace. A ConfigMap stands for the operator's own object: it owns what
// the operator creates.
type workload struct {
	*env
	owner string // reference
}

func (e *env) newWorkload(name string) *workload {
	e.Helper()
	m, err := e.core.CoreV1().ConfigMaps(e.ns).Create(e.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return &workload{e, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, name: %s, uid: %s, controller: true}", name, m.UID)}
}

// podGroup creates a PodGroup.
func (w *workload) podGroup(name, owner, spec string) {
	w.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: %s, ownerReferences: [%s]}
spec: {%s}`, name, owner, spec))
}

// allResources is the sum of the requests of a workload's four pods, which operators write into the PodGroup.
const allResources = `minResources: {cpu: "16", memory: 4Gi}`

const (
	podSpec = `
  schedulerName: volcano
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: busybox, resources: {requests: {cpu: "4", memory: 1Gi}}}]`
	// templateSpec is podSpec in a template.
	templateSpec = `
      schedulerName: volcano
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: busybox, resources: {requests: {cpu: "4", memory: 1Gi}}}]`
)

// member creates a pod with these annotations.
func (w *workload) member(name, label, owner, annotations string) {
	w.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {group: %s}
  annotations: {%s}
  ownerReferences: [%s]
spec:%s`, name, label, annotations, owner, podSpec))
}

// gone deletes a pod and waits until it does not exist.
func (w *workload) gone(name string) {
	w.Helper()
	uid := w.pod(name).UID
	err := w.core.CoreV1().Pods(w.ns).Delete(w.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if err != nil {
		w.Fatal(err)
	}
	w.eventually(name+" is gone", func() error {
		if slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return p.UID == uid }) {
			return fmt.Errorf("it exists")
		}
		return nil
	})
}

func (w *workload) groupPhase(name, phase string) {
	w.Helper()
	w.says(podGroupResource, name, `"phase":"`+phase+`"`)
}

// statefulSet creates a StatefulSet of a LeaderWorkerSet.
func (w *workload) statefulSet(name, owner string, replicas, first int) {
	w.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[1]s, ownerReferences: [%[2]s]}
spec:
  serviceName: lws
  podManagementPolicy: Parallel
  replicas: %[3]d
  ordinals: {start: %[4]d}
  selector: {matchLabels: {set: %[1]s}}
  template:
    metadata:
      labels: {set: %[1]s, group: lws}
      annotations: {scheduling.k8s.io/group-name: lws-0-rev1}
    spec:%[5]s`, name, owner, replicas, first, templateSpec))
}

// leaderGroup creates what the operator of LeaderWorkerSets creates once it sees a leader: a PodGroup
// and the workers, which the leader owns.
func (w *workload) leaderGroup(not string) (leader string) {
	w.Helper()
	w.eventually("the leader", func() error {
		p, err := w.core.CoreV1().Pods(w.ns).Get(w.Context(), "lws-0", metav1.GetOptions{})
		if err == nil && string(p.UID) == not {
			err = fmt.Errorf("it is the old one")
		}
		if err == nil {
			leader = string(p.UID)
		}
		return err
	})
	owner := "{apiVersion: v1, kind: Pod, name: lws-0, uid: " + leader + ", controller: true}"
	w.podGroup("lws-0-rev1", owner, "minMember: 4, "+allResources)
	w.statefulSet("lws-0", owner, 3, 1)
	return leader
}

// jobOf creates a batch/v1 Job of pods that name a PodGroup.
func (w *workload) jobOf(name, label, group string, pods int) {
	w.Helper()
	w.apply(fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %s, ownerReferences: [%s]}
spec:
  parallelism: %[3]d
  completions: %[3]d
  completionMode: Indexed
  backoffLimit: 0
  template:
    metadata:
      labels: {group: %[4]s}
      annotations: {scheduling.k8s.io/group-name: %[5]s}
    spec:
      restartPolicy: Never%[6]s`, name, w.owner, pods, label, group, templateSpec))
}

var operators = []operator{
	{
		// The leader exists before its PodGroup, which it owns. If a pod restarts, the whole group is created
		// anew, under the same names.
		name: "lws", group: "lws-0-rev1", waits: "NotEnoughResources",
		create: func(w *workload) {
			w.statefulSet("lws", w.owner, 1, 0)
			w.leaderGroup("")
		},
		replace: func(w *workload) {
			old := string(w.pod("lws-0").UID)
			w.gone("lws-0")
			// The garbage collector deletes what the old leader owned.
			w.eventually("the old group is gone", func() error {
				sets, err := w.core.AppsV1().StatefulSets(w.ns).List(w.Context(), metav1.ListOptions{})
				if err == nil && slices.ContainsFunc(sets.Items, func(s appsv1.StatefulSet) bool { return s.Name == "lws-0" }) {
					err = fmt.Errorf("the StatefulSet exists")
				}
				if err == nil {
					var list int
					if list, err = w.podGroups(); err == nil && list > 0 {
						err = fmt.Errorf("the PodGroup exists")
					}
				}
				if err == nil && slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, "lws-0-") }) {
					err = fmt.Errorf("workers exist")
				}
				return err
			})
			w.leaderGroup(old)
		},
	},
	{
		// The head, then the workers. A worker that fails is replaced by one with another name.
		name: "ray", group: "ray-cluster-pg", waits: "NotEnoughResources",
		create: func(w *workload) {
			w.podGroup("ray-cluster-pg", w.owner, "minMember: 4, "+allResources)
			w.member("cluster-head", "ray", w.owner, "scheduling.k8s.io/group-name: ray-cluster-pg, volcano.sh/task-spec: headgroup")
			for _, name := range []string{"a", "b", "c"} {
				w.member("cluster-worker-"+name, "ray", w.owner, "scheduling.k8s.io/group-name: ray-cluster-pg, volcano.sh/task-spec: workers")
			}
		},
		replace: func(w *workload) {
			w.gone("cluster-worker-b")
			w.member("cluster-worker-d", "ray", w.owner, "scheduling.k8s.io/group-name: ray-cluster-pg, volcano.sh/task-spec: workers")
		},
	},
	{
		// The group announces the executors, which the driver creates and owns.
		name: "spark", group: "spark-app-pg", waits: "spec.minResources",
		create: func(w *workload) {
			w.podGroup("spark-app-pg", w.owner, "minMember: 1, "+allResources)
			w.member("app-driver", "spark", w.owner, "scheduling.k8s.io/group-name: spark-app-pg")
		},
		start: func(w *workload) {
			for i := range 3 {
				w.executor(i)
			}
		},
		replace: func(w *workload) {
			w.setPodStatus("app-exec-1", corev1.PodStatus{Phase: corev1.PodFailed})
			w.executor(3)
			w.gone("app-exec-1")
		},
	},
	{
		// The group has the name of the MPIJob. Workers are pods, the launcher is a batch/v1 Job.
		name: "mpi", group: "pi", waits: "NotEnoughResources",
		create: func(w *workload) {
			w.podGroup("pi", w.owner, "minMember: 4, "+allResources)
			for i := range 3 {
				w.member(fmt.Sprint("pi-worker-", i), "mpi", w.owner, "scheduling.k8s.io/group-name: pi")
			}
			w.jobOf("pi-launcher", "mpi", "pi", 1)
		},
		replace: func(w *workload) {
			w.gone("pi-worker-1")
			w.member("pi-worker-1", "mpi", w.owner, "scheduling.k8s.io/group-name: pi")
		},
	},
	{
		// The training operator creates the pods of a PyTorchJob only if their group is Inqueue.
		name: "pytorch", group: "train", waits: "spec.minResources",
		announce: func(w *workload) { w.podGroup("train", w.owner, "minMember: 4, "+allResources) },
		create: func(w *workload) {
			w.member("train-master-0", "pytorch", w.owner, "scheduling.k8s.io/group-name: train, volcano.sh/task-spec: master")
			for i := range 3 {
				w.member(fmt.Sprint("train-worker-", i), "pytorch", w.owner, "scheduling.k8s.io/group-name: train, volcano.sh/task-spec: worker")
			}
		},
		replace: func(w *workload) {
			w.setPodStatus("train-worker-2", corev1.PodStatus{Phase: corev1.PodFailed})
			w.gone("train-worker-2")
			w.member("train-worker-2", "pytorch", w.owner, "scheduling.k8s.io/group-name: train, volcano.sh/task-spec: worker")
		},
	},
	{
		// A JobSet has no groups of its own: its pods name one that the user has created. After a failure all
		// of its Jobs are created anew.
		name: "jobset", group: "set", waits: "NotEnoughResources",
		create: func(w *workload) {
			w.podGroup("set", w.owner, "minMember: 4")
			w.jobOf("set-driver-0", "jobset", "set", 1)
			w.jobOf("set-workers-0", "jobset", "set", 3)
		},
		replace: func(w *workload) {
			jobs := w.core.BatchV1().Jobs(w.ns)
			err := jobs.DeleteCollection(w.Context(), metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}, metav1.ListOptions{})
			if err != nil {
				w.Fatal(err)
			}
			w.eventually("the Jobs are gone", func() error {
				list, err := jobs.List(w.Context(), metav1.ListOptions{})
				if err == nil && len(list.Items) > 0 {
					err = fmt.Errorf("%d exist", len(list.Items))
				}
				return err
			})
			w.jobOf("set-driver-0", "jobset", "set", 1)
			w.jobOf("set-workers-0", "jobset", "set", 3)
		},
	},
}

func (w *workload) executor(i int) {
	w.Helper()
	owner := fmt.Sprintf("{apiVersion: v1, kind: Pod, name: app-driver, uid: %s, controller: true}", w.pod("app-driver").UID)
	w.member(fmt.Sprint("app-exec-", i), "spark", owner, "scheduling.k8s.io/group-name: spark-app-pg")
}

// podGroups returns the number of PodGroups in the namespace.
func (e *env) podGroups() (int, error) {
	list, err := e.dyn.Resource(podGroupResource).Namespace(e.ns).List(e.Context(), metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}

// up creates a workload and waits until its four pods have nodes. crowded is called while the workload
// waits; it is nil if the workload does not have to wait.
func (o *operator) up(w *workload, crowded func(pods int)) {
	w.Helper()
	waits := func(pods int) {
		if crowded != nil {
			w.says(podGroupResource, o.group, o.waits)
			crowded(pods)
			crowded = nil
		}
	}
	if o.announce != nil {
		o.announce(w)
		waits(0)
		w.groupPhase(o.group, "Inqueue")
	}
	o.create(w)
	pods := 4
	if o.start != nil {
		pods = 1
	}
	waits(pods)
	w.untilBound(o.name, pods)
	if o.start != nil {
		o.start(w)
		w.untilBound(o.name, 4)
	}
	w.groupPhase(o.group, "Running")
}

// TestPodsOfOperators plays operators that use PodGroups: what each creates, in its order. Gangs get
// nodes whole, with one write per pod and two per group; pods that fail are replaced; and when the
// operator's object is deleted, nothing is left.
func TestPodsOfOperators(t *testing.T) {
	e := startUnmanaged(t)
	stop := e.run()
	for i := range operators {
		o := &operators[i]
		t.Run(o.name+" waits", func(t *testing.T) {
			e := e.in(t)
			e.ns = localtest.NamespaceForPods(t, e.core)

			// There is room for two of its four pods: none starts.
			w := e.newWorkload("crowded")
			for i := range 3 {
				e.apply(fmt.Sprintf(strings.ReplaceAll(plainPod, `cpu: "1"`, `cpu: "8"`), fmt.Sprint("rest-", i)))
				e.podQueue(fmt.Sprint("rest-", i))
			}
			o.up(w, func(pods int) {
				e.eventually("the pods exist", func() error {
					if n := len(e.pods()) - 3; n != pods {
						return fmt.Errorf("%d pods exist, not %d", n, pods)
					}
					return nil
				})
				if n := e.boundOf(o.name); n > 0 {
					t.Errorf("%d pods have nodes, although the others do not fit", n)
				}
				for i := range 3 {
					w.gone(fmt.Sprint("rest-", i))
				}
			})
			o.down(w, "crowded")
		})
	}
	stop()
	e.run(frugal)
	for i := range operators {
		o := &operators[i]
		t.Run(o.name, func(t *testing.T) {
			e := e.in(t)

			// On a free cluster it costs one write per pod and two per group.
			e.ns = localtest.NamespaceForPods(t, e.core)
			w := e.newWorkload("free")
			o.up(w, nil)
			writes := managerWrites(t, e.c, e.ns)
			if writes["pods/binding create"] != 4 || writes["podgroups/status update"] > 2 || writes["pods/status patch"] > 0 && o.together(e) {
				t.Errorf("the manager wrote %v; want 4 bindings, and at most 2 statuses of the group", writes)
			}

			// Pods are replaced.
			o.replace(w)
			w.untilBound(o.name, 4)
			w.groupPhase(o.group, "Running")
			o.down(w, "free")
		})
	}
}

// together reports whether the pods were created within the time for which a group that lacks pods may
// wait before that is reported.
func (o *operator) together(e *env) bool {
	var first, last metav1.Time
	for _, p := range e.pods() {
		if first.IsZero() || p.CreationTimestamp.Before(&first) {
			first = p.CreationTimestamp
		}
		if last.Before(&p.CreationTimestamp) {
			last = p.CreationTimestamp
		}
	}
	return last.Sub(first.Time).Seconds() < 3
}

// down deletes the operator's object, and waits until the garbage collector has deleted what it owned.
func (o *operator) down(w *workload, name string) {
	w.Helper()
	if err := w.core.CoreV1().ConfigMaps(w.ns).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	w.eventually("everything is gone", func() error {
		groups, err := w.podGroups()
		if n := len(w.pods()); err == nil && groups+n > 0 {
			err = fmt.Errorf("%d PodGroups and %d pods are left", groups, n)
		}
		return err
	})
}
