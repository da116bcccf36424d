package nodecontroller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/nodecontroller"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// apply creates a pod on the node from a manifest.
func (e *env) apply(name, annotations, resources string) {
	e.Helper()
	p := &corev1.Pod{}
	e.check(yaml.UnmarshalStrict([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+", annotations: {"+annotations+"}}\n"+
		"spec: {schedulerName: lockstep, nodeSelector: {kubernetes.io/hostname: "+e.node+"}, containers: [{name: c, image: none, resources: {"+resources+"}}]}\n"), p))
	_, err := e.core.CoreV1().Pods("default").Create(e.Context(), p, metav1.CreateOptions{})
	e.check(err)
	e.Cleanup(func() { e.remove(name) })
}

func (e *env) remove(name string) {
	_ = e.core.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

// has waits until pods have CPUs.
func (e *env) has(names ...string) {
	e.Helper()
	e.eventually("CPUs", func() error {
		given := e.given()
		for _, name := range names {
			if _, found := given[name]; !found {
				return fmt.Errorf("pod %s has none", name)
			}
		}
		return nil
	})
}

// domains returns the L3 domains of the pods with a prefix, and the number of these pods in each.
func (e *env) domains(prefix string) map[int][]string {
	e.Helper()
	topo := machine.MustTopology()
	out := map[int][]string{}
	for name, r := range e.given() {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		for i, l3 := range topo.L3 {
			if l3.CPUs.Overlaps(r.Containers["c"].CPUs) {
				out[i] = append(out[i], name)
			}
		}
	}
	return out
}

// TestSharedPodsMakeRoomForAWaitingPod fills a node with L3 domains of single pods, and with domains in
// which a pod that shares its CPUs is left alone. A pod that waits for a whole domain gets one at once:
// the policy would wait for an hour.
func TestSharedPodsMakeRoomForAWaitingPod(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 9)
	e.startManager(nodecontroller.Policy{MovesPerHour: 100, Quiet: time.Hour})
	e.startAgent()
	e.await("the agent", ready)
	var shared []string
	for i := range 8 {
		shared = append(shared, fmt.Sprintf("%s-shared-%d", e.node, i))
		e.apply(shared[i], `cpuset-scheduler: "true"`, "requests: {cpu: 4}, limits: {cpu: 4}")
	}
	e.has(shared...)
	domains := e.domains(e.node + "-shared")
	if len(domains) != 4 {
		t.Fatalf("8 pods that request 4 CPUs are in domains %v, want 4 of 8 CPUs", domains)
	}
	for _, pods := range domains {
		e.remove(pods[0])
	}
	var whole []string
	for i := range 32 - 4 {
		whole = append(whole, fmt.Sprintf("%s-whole-%d", e.node, i))
		e.apply(whole[i], `cpu.lockstep.dev/request: "{bind: l3}"`, "requests: {cpu: 8}, limits: {cpu: 8}")
	}
	e.has(whole...)
	if domains := e.domains(e.node + "-shared"); len(domains) != 4 {
		t.Fatalf("the pods that are left are in domains %v", domains)
	}
	e.apply(e.node+"-waits", `cpu.lockstep.dev/request: "{bind: l3}"`, "requests: {cpu: 8}, limits: {cpu: 8}")
	e.has(e.node + "-waits")
	e.eventually("the shared pods are together", func() error {
		if domains := e.domains(e.node + "-shared"); len(domains) != 2 {
			return fmt.Errorf("they are in domains %v", domains)
		}
		return nil
	})
	e.atRest()
}

// resizePod changes what a pod requests, in place. A kubelet that can resize reports the resources of
// containers.
func (e *env) resizePod(name string, cpus int) {
	e.Helper()
	status := `{"status":{"phase":"Running","containerStatuses":[{"name":"c","image":"none","imageID":"","ready":true,"restartCount":0,"resources":{"requests":{"cpu":"1"}}}]}}`
	_, err := e.core.CoreV1().Pods("default").Patch(e.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	e.check(err)
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"%d"},"limits":{"cpu":"%d"}}}]}}`, cpus, cpus)
	_, err = e.core.CoreV1().Pods("default").Patch(e.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize")
	e.check(err)
}

// TestCPUsFollowAResize resizes pods with CPUs of their own and pods that share them.
func TestCPUsFollowAResize(t *testing.T) {
	e := newEnv(t, localtest.Shared(t), 10)
	e.startManager(nodecontroller.Policy{})
	e.startAgent()
	e.await("the agent", ready)
	own, shared := e.node+"-own", e.node+"-shared"
	e.apply(own, `cpu.lockstep.dev/request: "true", cpu.lockstep.dev/move: "false"`, "requests: {cpu: 4}, limits: {cpu: 4}")
	e.apply(shared, `cpuset-scheduler: "true"`, "requests: {cpu: 2}, limits: {cpu: 2}")
	e.has(own, shared)
	e.atRest()
	e.guard()
	cpus := func(name string) cpuset.Set { return e.given()[name].Containers["c"].CPUs }
	becomes := func(name string, count int) cpuset.Set {
		e.Helper()
		var now cpuset.Set
		e.eventually(fmt.Sprintf("pod %s has %d CPUs", name, count), func() error {
			if now = cpus(name); now.Len() != count {
				return fmt.Errorf("it has %s", now)
			}
			return nil
		})
		e.atRest()
		return now
	}
	first := cpus(own)
	e.resizePod(own, 6)
	grown := becomes(own, 6)
	if !first.SubsetOf(grown) {
		t.Errorf("CPUs %s became %s", first, grown)
	}
	e.resizePod(own, 2)
	if shrunk := becomes(own, 2); !shrunk.SubsetOf(grown) {
		t.Errorf("CPUs %s became %s", grown, shrunk)
	}
	e.resizePod(shared, 4)
	becomes(shared, 4)

	// More than others leave: the pod keeps what it has, and is told once.
	e.create(e.node+"-large", 200, nil)
	e.has(e.node + "-large")
	before := cpus(own)
	e.resizePod(own, 100)
	e.eventually("the event", func() error {
		list, err := e.core.CoreV1().Events("default").List(e.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + own + ",reason=CPUsNotResized"})
		if err == nil && (len(list.Items) != 1 || !strings.Contains(list.Items[0].Message, "100 free CPUs")) {
			err = fmt.Errorf("the events are %+v", list.Items)
		}
		return err
	})
	if now := cpus(own); !now.Equal(before) {
		t.Errorf("CPUs %s became %s", before, now)
	}
	if n, err := e.topology(); err != nil || n.Status.Repack != nil && n.Status.Repack.Phase == topology.RepackFailed {
		t.Errorf("the topology says %+v, %v", n.Status, err)
	}
}
