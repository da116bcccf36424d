package rules

import (
	"encoding/json"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

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

// TestNodeTopologySize holds what is stored of 256 CPUs below 4 kB, metadata included.
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

// as is a client that acts for someone else.
func as(t *testing.T, who rest.ImpersonationConfig) dynamic.Interface {
	t.Helper()
	config := rest.CopyConfig(localtest.Shared(t).RESTConfig())
	config.Impersonate = who
	return dynamic.NewForConfigOrDie(config)
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
		want string // empty where it may
	}{
		"its own, by a bound token":        {rest.ImpersonationConfig{UserName: account, Extra: bound}, "mine", ""},
		"another's, by a bound token":      {rest.ImpersonationConfig{UserName: account, Extra: bound}, "yours", "metadata.name: the agent of node mine"},
		"a token that is not bound":        {rest.ImpersonationConfig{UserName: account}, "mine", "do not say which node"},
		"its own, by a user's name":        {rest.ImpersonationConfig{UserName: "lockstep-agent:mine", Groups: []string{"lockstep:agents"}}, "mine", ""},
		"another's, by a user's name":      {rest.ImpersonationConfig{UserName: "lockstep-agent:mine", Groups: []string{"lockstep:agents"}}, "yours", "metadata.name: the agent of node mine"},
		"a member of the group, otherwise": {rest.ImpersonationConfig{UserName: "someone", Groups: []string{"lockstep:agents"}}, "mine", "do not say which node"},
		"the name without the group":       {rest.ImpersonationConfig{UserName: "lockstep-agent:mine"}, "mine", "cannot update resource"},
		"the manager":                      {rest.ImpersonationConfig{UserName: "lockstep-manager"}, "mine", "cannot update resource"},
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
