package rules

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

var topologies = schema.GroupVersionResource{Group: "topology.lockstep.dev", Version: "v1alpha1", Resource: "nodetopologies"}

func init() { kinds[topologies] = "NodeTopology" }

// machine is a machine of two cores.
const machine = `{cores: [["0-1", "2-3"]], sockets: [{id: 0, cpus: 0-3}], numa: [{id: 0, cpus: 0-3, memory: 1, distances: [10]}], l3: [{domains: [0-3]}]}`

func TestNodeTopologiesRefused(t *testing.T) {
	c := client(t)
	for what, tc := range map[string]struct{ old, new, want string }{
		"no cores":                    {`cores: [["0-1", "2-3"]], `, "", "spec.cores"},
		"an empty list of cores":      {`[["0-1", "2-3"]]`, "[]", "spec.cores"},
		"cores without threads":       {`[["0-1", "2-3"]]`, "[[]]", "spec.cores[0]"},
		"CPUs that are no list":       {`cpus: 0-3, memory`, `cpus: "0..3", memory`, "spec.numa[0].cpus"},
		"a NUMA node without a part":  {`distances: [10]`, "distances: [10, 20]", "numa[*].distances"},
		"two NUMA nodes of one id":    {`distances: [10]}`, "distances: [10, 20]}, {id: 0, memory: 1, distances: [20, 10]}", "numa[*].id"},
		"two sockets of one id":       {`{id: 0, cpus: 0-3}]`, "{id: 0, cpus: 0-1}, {id: 0, cpus: 2-3}]", "sockets[*].id"},
		"a distance above 255":        {`distances: [10]`, "distances: [256]", "spec.numa[0].distances[0]"},
		"negative memory":             {`memory: 1`, "memory: -1", "spec.numa[0].memory"},
		"a typing error in the spec":  {`l3:`, "l3s:", "spec.l3s"},
		"an offline CPU of no number": {`l3:`, "offline: x, l3:", "spec.offline"},
	} {
		t.Run(what, func(t *testing.T) {
			spec := strings.Replace(machine, tc.old, tc.new, 1)
			if spec == machine {
				t.Fatalf("%q is not in the machine", tc.old)
			}
			err := create(t, c, topologies, "x", spec, true)
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want a refusal that says %q", err, tc.want)
			}
		})
	}
	if err := create(t, c, topologies, "x", machine, true); err != nil {
		t.Errorf("the machine itself: %v", err)
	}
}

// TestNodeTopologySize checks that the stored form of 256 CPUs stays below 4 kB, including
// metadata.
func TestNodeTopologySize(t *testing.T) {
	c := client(t)
	for name, m := range map[string]machines.Machine{"nps1": machines.AMD256NPS1, "nps4": machines.AMD256NPS4, "intel": machines.Alternate} {
		data, err := json.Marshal(m.MustTopology().Encode())
		if err != nil {
			t.Fatal(err)
		}
		if err := create(t, c, topologies, name, string(data), false); err != nil {
			t.Fatal(err)
		}
		live, err := c.Resource(topologies).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored, err := json.Marshal(live.Object)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", name, len(stored))
		if len(stored) > 4000 {
			t.Errorf("%s: %d bytes stored, want at most 4,000", name, len(stored))
		}
	}
}

// as returns a client that impersonates another user.
func as(t *testing.T, who rest.ImpersonationConfig) dynamic.Interface {
	t.Helper()
	return dynamic.NewForConfigOrDie(impersonating(t, who))
}

func impersonating(t *testing.T, who rest.ImpersonationConfig) *rest.Config {
	t.Helper()
	config := rest.CopyConfig(localtest.Shared(t).RESTConfig())
	config.Impersonate = who
	return config
}

func TestAgentsWriteTheirOwnNodeOnly(t *testing.T) {
	admin := client(t)
	for _, node := range []string{"mine", "yours"} {
		if err := create(t, admin, topologies, node, machine, false); err != nil {
			t.Fatal(err)
		}
	}
	const account = "system:serviceaccount:lockstep-system:lockstep-agent"
	bound := map[string][]string{"authentication.kubernetes.io/node-name": {"mine"}}
	for what, tc := range map[string]struct {
		who  rest.ImpersonationConfig
		node string
		want string // empty if allowed
	}{
		"its own, by a bound token":        {rest.ImpersonationConfig{UserName: account, Extra: bound}, "mine", ""},
		"another's, by a bound token":      {rest.ImpersonationConfig{UserName: account, Extra: bound}, "yours", "metadata.name: the agent of node mine"},
		"a token that is not bound":        {rest.ImpersonationConfig{UserName: account}, "mine", "do not say which node"},
		"its own, by a user's name":        {rest.ImpersonationConfig{UserName: "lockstep-agent:mine", Groups: []string{"lockstep:agents"}}, "mine", ""},
		"another's, by a user's name":      {rest.ImpersonationConfig{UserName: "lockstep-agent:mine", Groups: []string{"lockstep:agents"}}, "yours", "metadata.name: the agent of node mine"},
		"a member of the group, otherwise": {rest.ImpersonationConfig{UserName: "someone", Groups: []string{"lockstep:agents"}}, "mine", "do not say which node"},
		"the name without the group":       {rest.ImpersonationConfig{UserName: "lockstep-agent:mine"}, "mine", "cannot update resource"},
	} {
		t.Run(what, func(t *testing.T) {
			live, err := admin.Resource(topologies).Get(t.Context(), tc.node, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c := as(t, tc.who).Resource(topologies)
			set(live.Object, []string{"spec", "offline"}, "4-7")
			check := func(u *unstructured.Unstructured, err error) *unstructured.Unstructured {
				t.Helper()
				if tc.want == "" && err != nil {
					t.Fatalf("refused: %v", err)
				}
				if tc.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.want)) {
					t.Fatalf("got %v, want a refusal that says %q", err, tc.want)
				}
				return u
			}
			if u := check(c.Update(t.Context(), live, metav1.UpdateOptions{})); u != nil {
				live = u
			}
			live.Object["status"] = map[string]any{"agentVersion": what}
			check(c.UpdateStatus(t.Context(), live, metav1.UpdateOptions{}))
		})
	}
}

// TestWhatOfNodeTopologiesIsWhose checks that requests for moves need a separate right, that the
// manager may write only the status, and that an agent may renew only its own lease.
func TestWhatOfNodeTopologiesIsWhose(t *testing.T) {
	admin := client(t)
	if err := create(t, admin, topologies, "whose", machine, false); err != nil {
		t.Fatal(err)
	}
	agent := rest.ImpersonationConfig{UserName: "lockstep-agent:whose", Groups: []string{"lockstep:agents"}}
	manager := rest.ImpersonationConfig{UserName: "lockstep-manager"}
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	patch := func(who rest.ImpersonationConfig, data string, sub ...string) error {
		_, err := as(t, who).Resource(topologies).Patch(t.Context(), "whose", types.MergePatchType, []byte(data), metav1.PatchOptions{}, sub...)
		return err
	}
	lease := func(who rest.ImpersonationConfig, name string) error {
		_, err := as(t, who).Resource(leases).Namespace("lockstep-system").Create(t.Context(), &unstructured.Unstructured{Object: parse(
			`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: ` + name + `}, spec: {holderIdentity: x}}`)}, metav1.CreateOptions{})
		return err
	}
	for _, tc := range []struct {
		what string
		err  error
		want string // empty if allowed
	}{
		{"an agent asks for moves", patch(agent, `{"repack":{"id":"a"}}`), "the verb repack"},
		{"the manager asks for moves", patch(manager, `{"repack":{"id":"a"}}`), "cannot patch resource"},
		{"an administrator does", patch(rest.ImpersonationConfig{}, `{"repack":{"id":"a"}}`), ""},
		{"an agent takes it back", patch(agent, `{"repack":null}`), "the verb repack"},
		{"an agent writes its machine beside it", patch(agent, `{"spec":{"offline":"4-5"}}`), ""},
		{"the manager writes a machine", patch(manager, `{"spec":{"offline":"4-7"}}`), "cannot patch resource"},
		{"the manager writes a status", patch(manager, `{"status":{"moved":1}}`, "status"), ""},
		{"a request without an ID", patch(rest.ImpersonationConfig{}, `{"repack":{"id":""}}`), "repack.id"},
		{"a negative number of moves", patch(rest.ImpersonationConfig{}, `{"repack":{"id":"b","movesMax":-1}}`), "repack.movesMax"},
		{"an agent's lease", lease(agent, "lockstep-agent.whose"), ""},
		{"another agent's lease", lease(agent, "lockstep-agent.mine"), "may write the Lease lockstep-agent.whose only"},
		{"the managers' lease", lease(agent, "lockstep-manager"), "may write the Lease lockstep-agent.whose only"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (tc.err == nil || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", tc.what, tc.err, tc.want)
		}
	}
}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// cpuPod returns a pod of one container with the given resources and metadata.
func cpuPod(metadata, resources string) map[string]any {
	return parse(`{apiVersion: v1, kind: Pod, metadata: {name: x, ` + metadata + `}, spec: {schedulerName: lockstep,
		containers: [{name: c, image: i, resources: ` + resources + `}]}}`)
}

func parse(manifest string) map[string]any {
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(manifest), &fields); err != nil {
		panic(err)
	}
	return fields
}

func TestRequestsForCPUs(t *testing.T) {
	c := client(t)
	const four = "{limits: {cpu: 4}}"
	notes := func(pairs string) string { return "annotations: {" + pairs + "}" }
	own := func(value string) string { return notes("cpu.lockstep.dev/request: '" + value + "'") }
	koord := func(spec string) string {
		return `labels: {koordinator.sh/qosClass: LSR, koordinator.sh/priority-class: koord-prod}, ` + notes("scheduling.koordinator.sh/resource-spec: '"+spec+"'")
	}
	for what, tc := range map[string]struct{ metadata, resources, want string }{
		"ACK":                          {notes(`cpuset-scheduler: "true"`), four, ""},
		"ACK in thousandths":           {notes(`cpuset-scheduler: "true"`), "{limits: {cpu: 4000m}}", ""},
		"ACK with static-burst":        {notes(`cpuset-scheduler: "true", cpu-policy: static-burst`), four, ""},
		"ACK turned off":               {notes(`cpuset-scheduler: "false"`), "{limits: {cpu: 1500m}}", ""},
		"a fraction":                   {notes(`cpuset-scheduler: "true"`), "{limits: {cpu: 1500m}}", "spec.containers[*].resources.limits.cpu: no container has a whole number of CPUs"},
		"less than one":                {notes(`cpuset-scheduler: "true"`), "{limits: {cpu: 500m}}", "spec.containers[*].resources.limits.cpu: no container has a whole number of CPUs"},
		"no limit":                     {notes(`cpuset-scheduler: "true"`), "{requests: {cpu: 4}}", "spec.containers[*].resources.limits.cpu"},
		"ACK's CPU and GPU feature":    {notes(`cpuset-scheduler: required`), four, "metadata.annotations[cpuset-scheduler]"},
		"an unknown value":             {notes(`cpuset-scheduler: "yes"`), four, "metadata.annotations[cpuset-scheduler]"},
		"an unknown policy":            {notes(`cpuset-scheduler: "true", cpu-policy: burst`), four, "metadata.annotations[cpu-policy]: it is"},
		"a policy without the switch":  {notes(`cpu-policy: static-burst`), four, "metadata.annotations[cpu-policy]: needs"},
		"two languages":                {notes(`cpuset-scheduler: "true", cpu.lockstep.dev/request: "true"`), four, "metadata: asks for CPUs in more than one way"},
		"Lockstep":                     {own("true"), four, ""},
		"Lockstep by requests":         {own("true"), "{requests: {cpu: 4}}", ""},
		"Lockstep in YAML":             {own("{bind: full-core, span: single-numa, isolation: core, memory: local, share: 1, prefer: [bind], containers: {c: {bind: l3}}}"), four, ""},
		"Lockstep in JSON":             {own(`{"bind": "full-core", "share": 1}`), four, ""},
		"an unpinned container":        {own("{containers: {c: {pin: false}}}"), "{limits: {cpu: 1500m}}", ""},
		"Lockstep with a fraction":     {own("{bind: l3}"), "{requests: {cpu: 2500m}}", "spec.containers[0].resources.requests.cpu: 2500m"},
		"an unknown bind":              {own("{bind: cores}"), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"an unknown bind in JSON":      {own(`{"bind": "cores"}`), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"performance cores":            {own("{cores: performance, prefer: [cores]}"), four, ""},
		"an unknown kind of cores":     {own("{cores: fast}"), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"an unknown span":              {own("{span: one}"), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"a container's unknown memory": {own("{containers: {c: {memory: near}}}"), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"a share out of bounds":        {own("{share: 1001}"), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"no object":                    {own("yes"), four, "metadata.annotations[cpu.lockstep.dev/request]"},
		"Koordinator":                  {koord(`{"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}`), "{requests: {cpu: 4}}", ""},
		"Koordinator with a fraction":  {koord(`{}`), "{requests: {cpu: 1500m}}", "spec.containers[0].resources.requests.cpu"},
		"Koordinator without a count":  {koord(`{}`), "{}", "spec.containers[*].resources.requests.cpu"},
		"a spec that is no JSON":       {koord(`FullPCPUs`), "{requests: {cpu: 4}}", "metadata.annotations[scheduling.koordinator.sh/resource-spec]"},
		"an unknown bind policy":       {koord(`{"preferredCPUBindPolicy": "ConstrainedBurst"}`), "{requests: {cpu: 4}}", "metadata.annotations[scheduling.koordinator.sh/resource-spec]"},
		"an unknown exclusive policy":  {koord(`{"preferredCPUExclusivePolicy": "Always"}`), "{requests: {cpu: 4}}", "metadata.annotations[scheduling.koordinator.sh/resource-spec]"},
		"another class":                {"labels: {koordinator.sh/qosClass: LS}", "{requests: {cpu: 1500m}}", ""},
	} {
		check := func(t *testing.T, path string, err error) {
			t.Helper()
			want := tc.want
			if want != "" {
				want = path + want
			}
			if want == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got %v, want a refusal that says %q", err, want)
			}
		}
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		t.Run(what, func(t *testing.T) {
			pod := &unstructured.Unstructured{Object: cpuPod(tc.metadata, tc.resources)}
			_, err := c.Resource(pods).Namespace("default").Create(t.Context(), pod, dry)
			check(t, "", err)
			job := parse(`{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: x}, spec: {tasks: [` + task("name: w, replicas: 1") + `,
				{name: p, replicas: 1, template: {metadata: {` + tc.metadata + `}, spec: {containers: [{name: c, image: i, resources: ` + tc.resources + `}]}}}]}}`)
			_, err = in(c, jobs).Create(t.Context(), &unstructured.Unstructured{Object: job}, dry)
			check(t, "spec.tasks[1].template.", err)
		})
	}
	t.Run("the pods of another scheduler", func(t *testing.T) {
		pod := cpuPod(notes(`cpuset-scheduler: "required"`), four)
		set(pod, []string{"spec", "schedulerName"}, "ack")
		if _, err := c.Resource(pods).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: pod}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("refused: %v", err)
		}
	})
}

func TestOnlyLockstepGivesCPUs(t *testing.T) {
	client(t) // the policies are in force
	core := kubernetes.NewForConfigOrDie(localtest.Shared(t).RESTConfig())
	// A user who may do anything with pods.
	_, err := core.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/status", "pods/binding"}, Verbs: []string{"*"}}}}, metav1.CreateOptions{})
	if err == nil {
		_, err = core.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pods"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pods"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "someone"}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	localtest.UntilAllowed(t, core, "someone", "create", "pods", "")
	someone := kubernetes.NewForConfigOrDie(impersonating(t, rest.ImpersonationConfig{UserName: "someone"}))
	manager := kubernetes.NewForConfigOrDie(impersonating(t, rest.ImpersonationConfig{UserName: "lockstep-manager"}))
	const key = "cpu.lockstep.dev/result"
	result := map[string]string{key: "x"}
	pod := func(name string, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
			Spec: corev1.PodSpec{SchedulerName: "lockstep", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	}
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "metadata.annotations[") {
			t.Errorf("%s: got %v, want a refusal that names the annotation", what, err)
		}
	}
	allowed := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	theirs, ours := someone.CoreV1().Pods("default"), manager.CoreV1().Pods("default")
	for _, k := range []string{key, "cpuset", "scheduling.koordinator.sh/resource-status"} {
		_, err := theirs.Create(t.Context(), pod("a", map[string]string{k: "x"}), metav1.CreateOptions{})
		refused("creating a pod with "+k, err)
	}
	_, err = ours.Create(t.Context(), pod("given", result), metav1.CreateOptions{})
	allowed("the manager's create", err)
	plain, err := theirs.Create(t.Context(), pod("plain", nil), metav1.CreateOptions{})
	allowed("a plain create", err)
	for name, patch := range map[string]string{
		"given": `{"metadata":{"annotations":{"cpu.lockstep.dev/result":null}}}`,
		"plain": `{"metadata":{"annotations":{"cpu.lockstep.dev/result":"x"}}}`,
	} {
		for _, sub := range [][]string{nil, {"status"}} {
			_, err := theirs.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...)
			refused(fmt.Sprintf("patching %s %v", name, sub), err)
		}
	}
	_, err = theirs.Patch(t.Context(), "given", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	allowed("patching something else", err)
	_, err = theirs.Patch(t.Context(), "given", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
	allowed("patching a status", err)
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "plain", UID: plain.UID, Annotations: result}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	refused("binding with the annotation", theirs.Bind(t.Context(), binding, metav1.CreateOptions{}))
	allowed("the manager's binding", ours.Bind(t.Context(), binding, metav1.CreateOptions{}))
	if live, err := theirs.Get(t.Context(), "plain", metav1.GetOptions{}); err != nil || live.Annotations[key] != "x" {
		t.Errorf("the bound pod has annotations %v: %v", live.Annotations, err)
	}
}
