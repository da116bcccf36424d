package manager_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	hypernode "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
)

var hyperNodes = hypernode.GroupVersion.WithResource("hypernodes")

// The cluster of these tests has 4 nodes of 8 CPUs, two in each rack. A rack has room for 4 pods of
// jobYAML.
const twoRacks = `
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: rack-a, labels: {row: "1"}}
spec:
  tier: 1
  tierName: rack
  members:
  - {type: Node, selector: {exactMatch: {name: node-0000}}}
  - {type: Node, selector: {exactMatch: {name: node-0001}}}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: rack-b, labels: {row: "1"}}
spec:
  tier: 1
  tierName: rack
  members:
  - {type: Node, selector: {regexMatch: {pattern: "^node-000[23]$"}}}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: row}
spec:
  tier: 2
  tierName: row
  members:
  - {type: HyperNode, selector: {labelMatch: {matchLabels: {row: "1"}}}}`

// startNetwork returns a namespace of a cluster without HyperNodes, which are deleted at the end.
func startNetwork(t *testing.T) *env {
	e, _ := startEvicting(t)
	t.Cleanup(e.removeHyperNodes)
	return e
}

func (e *env) removeHyperNodes() {
	if err := e.dyn.Resource(hyperNodes).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		e.Error(err)
	}
}

// rackOf tells the racks by their nodes.
var rackOf = map[string]string{"node-0000": "rack-a", "node-0001": "rack-a", "node-0002": "rack-b", "node-0003": "rack-b"}

// racks returns the racks of a job's pods.
func (e *env) racks(job string) []string {
	e.Helper()
	return racksOf(e.podsOf(job))
}

func racksOf(pods []corev1.Pod) []string {
	in := map[string]bool{}
	for _, p := range pods {
		in[rackOf[p.Spec.NodeName]] = true
	}
	return slices.Sorted(maps.Keys(in))
}

const hardInRack = "networkTopology: {mode: hard, highestTierAllowed: 1}"

func TestAHardJobStaysInOneRack(t *testing.T) {
	e := startNetwork(t)
	// There is no network yet.
	e.apply(jobYAML("a", 3, hardInRack, ""))
	e.waits("a", "the network has no domain of tier 1 or below")
	e.apply(twoRacks)
	e.runs("a", 3)
	if racks := e.racks("a"); len(racks) != 1 {
		t.Errorf("3 pods are in %v", racks)
	}
	e.apply(jobYAML("b", 2, "networkTopology: {highestTierName: rack}", ""))
	e.runs("b", 2)
	if racks := e.racks("b"); len(racks) != 1 {
		t.Errorf("2 pods are in %v", racks)
	}
	rack := e.racks("b")[0]
	// Three places are free, in two racks. What does not fit says why, in figures.
	e.apply(jobYAML("three", 3, hardInRack, ""))
	e.waits("three", "no domain of the network of tier 1 or below has room for 3 pods: the best of 2 domains, "+rack+", has room for 2 of 3 pods")
	e.apply(jobYAML("five", 5, hardInRack, ""))
	e.waits("five", "no domain of the network of tier 1 or below is large enough for 5 pods",
		"none would have room for more than 4 if nothing ran there")
	e.apply(jobYAML("hall", 1, "networkTopology: {highestTierName: hall}", ""))
	e.waits("hall", "no part of the network has tier hall")
	// Room helps.
	e.deleteJob("b")
	e.runs("three", 3)
	if racks := e.racks("three"); !slices.Equal(racks, []string{rack}) {
		t.Errorf("3 pods are in %v", racks)
	}
	// A higher tier holds what no rack holds.
	e.deleteJob("a")
	e.deleteJob("five")
	e.apply(jobYAML("row", 5, "networkTopology: {mode: hard, highestTierAllowed: 2}", ""))
	e.runs("row", 5)
	if j := e.job("row"); j.Status.Condition("Supported") != nil {
		t.Errorf("the conditions of a job in the row: %v", j.Status.Conditions)
	}
}

func TestASoftJobPrefersOneRack(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	e.apply(jobYAML("three", 3, "networkTopology: {mode: soft}", ""))
	e.runs("three", 3)
	if racks := e.racks("three"); len(racks) != 1 {
		t.Errorf("3 pods are in %v", racks)
	}
	e.apply(jobYAML("five", 5, "networkTopology: {mode: soft, highestTierAllowed: 1}", ""))
	e.runs("five", 5)
	e.apply(jobYAML("more", 1, "networkTopology: {mode: soft}", ""))
	e.waits("more", "not enough cpu")
}

// TestAPodIsReplacedInTheRackOfItsJob deletes a pod of a job whose rack is not the fullest.
func TestAPodIsReplacedInTheRackOfItsJob(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	e.apply(jobYAML("three", 3, hardInRack, ""))
	e.runs("three", 3)
	rack := e.racks("three")[0]
	e.apply(jobYAML("other", 3, hardInRack, "")) // the other rack is fuller from now on
	e.runs("other", 3)
	for range 3 {
		before := e.uids("three")
		gone := e.podsOf("three")[1]
		if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.eventually("the pod is replaced", func() error {
			if now := e.uids("three"); len(now) != 3 || maps.Equal(now, before) {
				return fmt.Errorf("%d pods", len(now))
			}
			return nil
		})
		if racks := e.racks("three"); !slices.Equal(racks, []string{rack}) {
			t.Fatalf("the pods are in %v, and were in %s", racks, rack)
		}
	}
}

func TestAPodGroupStaysInOneRack(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	group := func(name string, pods int, topology string) {
		e.apply(fmt.Sprintf(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: %s}
spec: {minMember: %d, networkTopology: %s}`, name, pods, topology))
		for i := range pods {
			e.apply(strings.Replace(memberYAML(name, fmt.Sprint(i)), `cpu: "2"`, `cpu: "4"`, 1))
		}
	}
	members := func(name string) (pods []corev1.Pod) {
		for _, p := range e.pods() {
			if strings.HasPrefix(p.Name, name+"-") && p.Spec.NodeName != "" {
				pods = append(pods, p)
			}
		}
		return pods
	}
	all := func(name string, n int) {
		t.Helper()
		e.eventually(name+" has nodes", func() error {
			if got := len(members(name)); got != n {
				return fmt.Errorf("%d pods have", got)
			}
			return nil
		})
	}
	group("three", 3, "{mode: hard, highestTierAllowed: 1}")
	all("three", 3)
	if racks := racksOf(members("three")); len(racks) != 1 {
		t.Errorf("3 pods are in %v", racks)
	}
	group("five", 5, "{mode: hard, highestTierAllowed: 1}")
	e.says(podGroupResource, "five", "no domain of the network of tier 1 or below is large enough for 5 pods: the best of 2 domains",
		"has room for 4 of 5 pods")
	group("soft", 2, "{mode: soft}")
	all("soft", 2)
	if racks := racksOf(members("soft")); len(racks) != 1 {
		t.Errorf("2 pods are in %v", racks)
	}
}

// TestHyperNodesSayWhatIsInThem checks their statuses, and that these take few writes.
func TestHyperNodesSayWhatIsInThem(t *testing.T) {
	e := startNetwork(t)
	before := managerWrites(t, e.c, "")["hypernodes/status update"]
	e.apply(twoRacks)
	count := func(name string, want int64, parts ...string) {
		t.Helper()
		e.eventually("the status of "+name, func() error {
			u, err := e.dyn.Resource(hyperNodes).Get(e.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			status, _ := u.Object["status"].(map[string]any)
			text := asJSON(status)
			if got, _ := status["nodeCount"].(int64); got != want || len(parts) == 0 && strings.Contains(text, "MembersResolved") {
				return fmt.Errorf("%s", text)
			}
			for _, part := range parts {
				if !strings.Contains(text, part) {
					return fmt.Errorf("%q is not in %s", part, text)
				}
			}
			return nil
		})
	}
	count("rack-a", 2)
	count("rack-b", 2)
	count("row", 4)
	if n := managerWrites(t, e.c, "")["hypernodes/status update"] - before; n > 6 {
		t.Errorf("%d writes for 3 statuses", n)
	}
	e.apply(`
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: rack-c}
spec:
  tier: 1
  members:
  - {type: Node, selector: {exactMatch: {name: node-0003}}}
  - {type: Node, selector: {exactMatch: {name: node-9999}}}
  - {type: HyperNode, selector: {exactMatch: {name: row}}}`)
	count("rack-c", 0, `"type":"MembersResolved"`, `"status":"False"`, `node \"node-0003\" belongs to HyperNode \"rack-b\" already`,
		`there is no node \"node-9999\"`, `HyperNode \"row\" has tier 2, which is not below 1`)
	// The others are as before.
	count("rack-b", 2)
	if err := e.dyn.Resource(hyperNodes).Delete(t.Context(), "rack-b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	count("rack-c", 1, `node-9999`)
	count("row", 2)
}

func TestHyperNodesAreChecked(t *testing.T) {
	e := startNetwork(t)
	for spec, want := range map[string]string{
		`{tier: 1}`:              "spec.members: Required",
		`{tier: 1, members: []}`: "spec.members: Invalid",
		`{members: [{type: Node, selector: {exactMatch: {name: x}}}]}`:                                    "spec.tier: Required",
		`{tier: -1, members: [{type: Node, selector: {exactMatch: {name: x}}}]}`:                          "spec.tier: Invalid",
		`{tier: 1, members: [{type: Rack, selector: {exactMatch: {name: x}}}]}`:                           "spec.members[0].type: Unsupported value",
		`{tier: 1, members: [{type: Node, selector: {}}]}`:                                                "must have exactly one of exactMatch, regexMatch and labelMatch",
		`{tier: 1, members: [{type: Node, selector: {exactMatch: {name: x}, regexMatch: {pattern: x}}}]}`: "must have exactly one of exactMatch, regexMatch and labelMatch",
		`{tier: 1, members: [{type: Node, selector: {exactMatch: {name: ""}}}]}`:                          "spec.members[0].selector.exactMatch.name: Invalid",
		`{tier: 1, members: [{type: Node, selector: {regexMatch: {pattern: "n["}}}]}`:                     "spec.members[0].selector.regexMatch.pattern",
	} {
		err := e.try("apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata: {name: x}\nspec: " + spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}

// TestLabelsOfNodesAreANetwork checks the manager's flag --network-labels.
func TestLabelsOfNodesAreANetwork(t *testing.T) {
	e := startUnmanaged(t)
	e.run(func(c *manager.Config) { c.NetworkLabels = []string{"example.com/rack", "example.com/row"} })
	label := func(node, labels string) {
		t.Helper()
		if _, err := e.core.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType,
			[]byte(`{"metadata":{"labels":`+labels+`}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	for node, rack := range rackOf {
		label(node, `{"example.com/rack":"`+rack+`","example.com/row":"row"}`)
		t.Cleanup(func() { label(node, `{"example.com/rack":null,"example.com/row":null}`) })
	}
	e.apply(jobYAML("three", 3, hardInRack, ""))
	e.runs("three", 3)
	if racks := e.racks("three"); len(racks) != 1 {
		t.Errorf("3 pods are in %v", racks)
	}
	e.apply(jobYAML("five", 5, "networkTopology: {highestTierName: example.com/rack}", ""))
	e.waits("five", "no domain of the network of tier example.com/rack or below is large enough for 5 pods")
	e.apply(jobYAML("row", 5, "networkTopology: {highestTierName: example.com/row}", ""))
	e.runs("row", 5)
}

// TestEvictionMakesRoomInOneRack lets an urgent job wait while the cheapest victims are in two racks.
func TestEvictionMakesRoomInOneRack(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	e.apply(jobYAML("a", 4, hardInRack, ""))
	e.runs("a", 4)
	rack := e.racks("a")[0]
	e.apply(jobYAML("b1", 2, hardInRack, `annotations: {volcano.sh/preemptable: "false"}`))
	e.runs("b1", 2)
	e.apply(jobYAML("b2", 2, hardInRack, ""))
	e.runs("b2", 2)
	e.apply(jobYAML("five", 5, "priorityClassName: urgent\n  "+hardInRack, ""))
	e.waits("five", "is large enough for 5 pods")
	e.apply(jobYAML("high", 3, "priorityClassName: urgent\n  "+hardInRack, ""))
	e.runs("high", 3)
	if racks := e.racks("high"); !slices.Equal(racks, []string{rack}) {
		t.Errorf("the claimant is in %v, and only %s could be emptied", racks, rack)
	}
	if n := len(e.podsOf("b1")) + len(e.podsOf("b2")); n != 4 {
		t.Errorf("%d pods of the other rack are left, want 4", n)
	}
}

// TestKeptCapacityIsInOneRack lets a job of a whole rack wait behind small ones.
func TestKeptCapacityIsInOneRack(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	small := map[string][]string{} // jobs by rack
	for i := range 8 {
		name := fmt.Sprint("before", i)
		e.apply(jobYAML(name, 1, "", ""))
		e.runs(name, 1)
		rack := e.racks(name)[0]
		small[rack] = append(small[rack], name)
	}
	e.apply(strings.Replace(jobYAML("large", 4, hardInRack, ""), "{name: large}",
		`{name: large, annotations: {volcano.sh/sla-waiting-time: 1s}}`, 1))
	e.waits("large", "what becomes free on 2 nodes is kept for it, because it has waited longer than 1s")
	// One place of each rack becomes free: the one in the rack that is kept stays so.
	e.apply(jobYAML("after0", 1, "", ""))
	e.waits("after0", "cpu")
	e.apply(jobYAML("after1", 1, "", ""))
	e.deleteJob(small["rack-a"][0])
	e.deleteJob(small["rack-b"][0])
	got := ""
	e.eventually("one of the small jobs runs", func() error {
		for _, name := range []string{"after0", "after1"} {
			if e.job(name).Status.Running == 1 {
				got = name
				return nil
			}
		}
		return fmt.Errorf("none does")
	})
	kept := "rack-a"
	if e.racks(got)[0] == kept {
		kept = "rack-b"
	}
	for _, name := range small[kept][1:] {
		e.deleteJob(name)
	}
	e.runs("large", 4)
	if racks := e.racks("large"); !slices.Equal(racks, []string{kept}) {
		t.Errorf("the large job is in %v, want %s", racks, kept)
	}
}

// partitionedYAML returns a job of partitions of pods of 4 CPUs.
func partitionedYAML(name string, partitions, size int, policy string) string {
	return strings.Replace(jobYAML(name, partitions*size, "", ""), "    template:",
		fmt.Sprintf("    partitionPolicy: {totalPartitions: %d, partitionSize: %d, %s}\n    template:", partitions, size, policy), 1)
}

// partitions returns the racks of each partition of a job, and the number of its pods.
func (e *env) partitions(job string) map[string]string {
	e.Helper()
	pods := map[string][]corev1.Pod{}
	for _, p := range e.podsOf(job) {
		id := p.Labels["volcano.sh/partition-id"]
		pods[id] = append(pods[id], p)
	}
	out := map[string]string{}
	for id, list := range pods {
		out[id] = fmt.Sprint(len(list), " in ", strings.Join(racksOf(list), " and "))
	}
	return out
}

func TestEachPartitionStaysInOneRack(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	const inRack = "networkTopology: {mode: hard, highestTierAllowed: 1}"
	e.apply(partitionedYAML("two", 2, 3, inRack))
	e.runs("two", 6)
	got := e.partitions("two")
	if one, other := got["0"], got["1"]; len(got) != 2 || one == other || !strings.HasPrefix(one, "3 in rack-") || !strings.HasPrefix(other, "3 in rack-") || strings.Contains(one+other, "and") {
		t.Errorf("the partitions are %v", got)
	}
	// Two places are free, one in each rack.
	e.apply(partitionedYAML("split", 1, 2, inRack))
	e.waits("split", "there is no room for 1 partition of 2 pods, each in one domain of the network of tier 1 or below: 0 of 1 partition fit")
	e.apply(partitionedYAML("soft", 1, 2, "networkTopology: {mode: soft}"))
	e.runs("soft", 2)
	// A pod is replaced in the rack of its partition.
	gone := e.podsOf("two")[0]
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the pod is replaced", func() error {
		if now := e.partitions("two"); !maps.Equal(now, got) || e.uids("two")[gone.UID] {
			return fmt.Errorf("%v", now)
		}
		return nil
	})
}

func TestAsManyPartitionsAsNeeded(t *testing.T) {
	e := startNetwork(t)
	// 8 pods fit. Without a network, partitions are whole or not there.
	e.apply(partitionedYAML("three", 3, 3, "minPartitions: 2"))
	j := e.runs("three", 6)
	if got := e.partitions("three"); len(got) != 2 || j.Status.State.Phase != "Running" || j.Status.Condition("Supported") != nil {
		t.Errorf("the partitions are %v, status %s", got, asJSON(j.Status))
	}
	e.apply(partitionedYAML("more", 2, 3, "minPartitions: 1"))
	e.waits("more", "there is no room for 1 partition of 3 pods: 0 of 1 partition fit")
	e.apply(jobYAML("one", 1, "", ""))
	e.runs("one", 1)
	e.deleteJob("one")
	e.deleteJob("three")
	e.runs("more", 6)
}
