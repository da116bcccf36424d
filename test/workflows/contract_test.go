package workflows

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// This file checks a status as clients of the API read it. Clients know only its JSON. A fault is a
// place where the JSON is not as clients need it.

// The fields that a status, a node, and a node's inputs and outputs may have. Clients know no
// others.
var (
	statusFields = fields(`phase startedAt finishedAt estimatedDuration progress message compressedNodes nodes offloadNodeStatusVersion
		storedTemplates persistentVolumeClaims outputs conditions resourcesDuration storedWorkflowTemplateSpec synchronization
		artifactRepositoryRef artifactGCStatus taskResultsCompletionStatus`)
	nodeFields = fields(`id name displayName type templateName templateRef templateScope phase boundaryID message startedAt finishedAt
		estimatedDuration progress resourcesDuration podIP daemoned nodeFlag inputs outputs children outboundNodes hostNodeName
		memoizationStatus synchronizationStatus taskResultSynced failedPodRestarts restartingPodUID`)
	ioFields   = fields("parameters artifacts result exitCode")
	nodeTypes  = fields("Pod Container Steps StepGroup DAG TaskGroup Retry Skipped Suspend HTTP Plugin")
	nodePhases = fields("Pending Running Succeeded Skipped Failed Error Omitted")
	fulfilled  = fields("Succeeded Skipped Failed Error Omitted")

	progressForm = regexp.MustCompile(`^\d+/\d+$`)
	scopeForm    = regexp.MustCompile(`^(local|namespaced|cluster)/.+$`)
)

func fields(text string) map[string]bool {
	out := map[string]bool{}
	for _, f := range strings.Fields(text) {
		out[f] = true
	}
	return out
}

// clientNode is a node as clients decode it.
type clientNode struct {
	ID, Name, DisplayName, Type, TemplateName, TemplateScope, Phase, BoundaryID, Message, StartedAt, FinishedAt, Progress, PodIP string

	TemplateRef   *struct{ Name, Template string }
	NodeFlag      struct{ Hooked, Retried bool }
	Children      []string
	OutboundNodes []string
	Inputs        map[string]json.RawMessage
	Outputs       map[string]json.RawMessage
}

// reader checks one status.
type reader struct {
	name   string
	nodes  map[string]clientNode
	faults []string
}

func (r *reader) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// contractFaults returns the faults in the status of a completed workflow.
func contractFaults(w *wf.Workflow) []string {
	text, err := json.Marshal(w.Status)
	if err != nil {
		return []string{err.Error()}
	}
	r := &reader{name: w.Name}
	var status struct {
		Phase, StartedAt, FinishedAt, Progress string

		Conditions []struct{ Type, Status string }
		Nodes      map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return []string{err.Error()}
	}
	r.only("status", text, statusFields)
	r.nodes = map[string]clientNode{}
	for id, raw := range status.Nodes {
		var n clientNode
		if err := json.Unmarshal(raw, &n); err != nil {
			r.fault("node %s: %v", id, err)
		}
		r.only("node "+id, raw, nodeFields)
		for what, io := range map[string]map[string]json.RawMessage{"inputs": n.Inputs, "outputs": n.Outputs} {
			for f := range io {
				if !ioFields[f] {
					r.fault("node %s: %s has %s", n.Name, what, f)
				}
			}
		}
		r.nodes[id] = n
	}
	if status.FinishedAt == "" {
		r.fault("finishedAt is not set")
	}
	if len(r.nodes) > 0 && !progressForm.MatchString(status.Progress) {
		r.fault("progress is %q", status.Progress)
	}
	completed := false
	for _, c := range status.Conditions {
		completed = completed || c.Type == "Completed" && c.Status == "True"
	}
	if !completed {
		r.fault("conditions: %v", status.Conditions)
	}
	for _, id := range slices.Sorted(maps.Keys(r.nodes)) {
		r.node(id, r.nodes[id])
	}
	r.tree()
	return r.faults
}

// only reports fields that are not known.
func (r *reader) only(what string, text []byte, known map[string]bool) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		r.fault("%s: %v", what, err)
	}
	for f := range all {
		if !known[f] {
			r.fault("%s has a field %s", what, f)
		}
	}
}

// hashed returns the hash of a node's name, which is the end of the node's id and of its pod's
// name.
func hashed(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprint(h.Sum32())
}

func (r *reader) node(id string, n clientNode) {
	want := r.name
	if n.Name != r.name {
		want += "-" + hashed(n.Name)
	}
	if id != n.ID || id != want {
		r.fault("node %s has id %s and key %s, want %s", n.Name, n.ID, id, want)
	}
	if !strings.HasPrefix(n.Name, r.name) {
		r.fault("node %s: the name does not start with the workflow's", n.Name)
	}
	if !nodeTypes[n.Type] || !nodePhases[n.Phase] {
		r.fault("node %s has type %q and phase %q", n.Name, n.Type, n.Phase)
	}
	if n.StartedAt == "" || fulfilled[n.Phase] != (n.FinishedAt != "") || n.FinishedAt != "" && n.FinishedAt < n.StartedAt {
		r.fault("node %s is %s from %q to %q", n.Name, n.Phase, n.StartedAt, n.FinishedAt)
	}
	if n.DisplayName == "" {
		r.fault("node %s has no displayName", n.Name)
	}
	if n.NodeFlag.Hooked && n.BoundaryID != "" && strings.ContainsAny(n.DisplayName, "[]") {
		r.fault("node %s has displayName %q, with the name of its group", n.Name, n.DisplayName)
	}
	if (n.Type == "Suspend" || n.Type == "Container") && n.Phase == "Succeeded" && n.Progress == "" {
		r.fault("node %s has no progress", n.Name)
	}
	if n.Progress != "" && !progressForm.MatchString(n.Progress) {
		r.fault("node %s has progress %q", n.Name, n.Progress)
	}
	if n.TemplateScope != "" && !scopeForm.MatchString(n.TemplateScope) {
		r.fault("node %s has templateScope %q", n.Name, n.TemplateScope)
	}
	for what, ids := range map[string][]string{"children": n.Children, "outboundNodes": n.OutboundNodes} {
		seen := map[string]bool{}
		for _, other := range ids {
			if _, found := r.nodes[other]; !found || seen[other] {
				r.fault("node %s: %s has %s, which is twice there or no node", n.Name, what, other)
			}
			seen[other] = true
		}
	}
	r.boundary(n)
}

// boundary checks the node in which a node is drawn: a steps or dag template, or a pod with several
// containers.
func (r *reader) boundary(n clientNode) {
	if n.BoundaryID == "" {
		switch rest := strings.TrimPrefix(n.Name, r.name); {
		case rest == "", strings.HasPrefix(rest, ".onExit"), strings.HasPrefix(rest, ".hooks."), strings.HasPrefix(rest, "("):
		default:
			r.fault("node %s has no boundaryID", n.Name)
		}
		return
	}
	around, found := r.nodes[n.BoundaryID]
	switch {
	case !found:
		r.fault("node %s: boundaryID %s is no node", n.Name, n.BoundaryID)
	case around.Type != "Steps" && around.Type != "DAG" && (around.Type != "Pod" || n.Type != "Container"):
		r.fault("node %s: boundaryID is of %s, a %s", n.Name, around.Name, around.Type)
	case !strings.HasPrefix(n.Name, around.Name):
		r.fault("node %s: boundaryID is of %s, which it is not in", n.Name, around.Name)
	}
}

// tree checks that all nodes are drawn: they must be reachable along children, without a cycle,
// from the root and from the nodes that run beside it.
func (r *reader) tree() {
	const under, done = 1, 2
	state := map[string]int{}
	var walk func(id string)
	walk = func(id string) {
		switch state[id] {
		case under:
			r.fault("node %s is its own descendant", r.nodes[id].Name)
			return
		case done:
			return
		}
		state[id] = under
		for _, child := range r.nodes[id].Children {
			walk(child)
		}
		state[id] = done
	}
	walk(r.name)
	for _, id := range slices.Sorted(maps.Keys(r.nodes)) {
		if n := r.nodes[id]; strings.HasPrefix(n.Name, r.name+".onExit") || n.NodeFlag.Hooked {
			walk(id)
		}
	}
	for id, n := range r.nodes {
		if state[id] == 0 {
			r.fault("node %s is not drawn: nothing has it as a child", n.Name)
		}
		for _, child := range n.Children {
			if c := r.nodes[child]; n.Type == "Retry" && !c.NodeFlag.Retried && !c.NodeFlag.Hooked {
				r.fault("node %s: the attempt %s is not marked as one", n.Name, c.Name)
			}
		}
	}
}

// clientPodName returns the pod name under which clients look for a node's log.
func clientPodName(workflow string, n *wf.NodeStatus) string {
	if n.Name == workflow {
		return workflow
	}
	template := n.TemplateName
	if n.TemplateRef != nil {
		template = n.TemplateRef.Template
	}
	prefix := workflow + "-" + template
	if len(prefix) > 242 {
		prefix = prefix[:242]
	}
	return prefix + "-" + hashed(n.Name)
}

// TestContractFaults checks that contractFaults, which the tests of all cases use, finds faults.
func TestContractFaults(t *testing.T) {
	w := &wf.Workflow{}
	w.Name = "w"
	w.Status = wf.WorkflowStatus{Phase: wf.WorkflowSucceeded, Nodes: wf.Nodes{
		"w":  {ID: "w", Name: "w", Type: wf.NodeSteps, Phase: wf.PhaseSucceeded, Children: []string{"w-1", "gone"}},
		"w2": {ID: "w2", Name: "w.x", Type: "Odd", Phase: wf.PhaseRunning},
	}}
	text := strings.Join(contractFaults(w), "\n")
	for _, want := range []string{"finishedAt is not set", "progress is", "no node", "has id w2", `type "Odd"`, "not drawn", "no boundaryID", "conditions"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not found in\n%s", want, text)
		}
	}
}
