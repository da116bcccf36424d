package main

import (
	"fmt"
	"strings"
)

// rule is one x-kubernetes-validations entry that is too long to read as a marker beside its type. Short rules are
// markers in api/.
type rule struct {
	crd string
	// at is the place of the rule in the schema: property names, and [] for the items of a list.
	at string
	// cel is the rule. It may span lines.
	cel string
	// message is what the user reads when the rule is broken; where messageCEL is set it is computed by that instead.
	message, messageCEL string
	// field is the part of the object at which the message points, relative to at.
	field string
}

const (
	jobs   = "batch.volcano.sh_jobs.yaml"
	queues = "scheduling.volcano.sh_queues.yaml"
	groups = "scheduling.volcano.sh_podgroups.yaml"
)

// waits says whether t names tasks that it waits for.
const waits = `has(t.dependsOn) && has(t.dependsOn.name)`

// The cost of a rule is estimated when the CRD is created, from the bounds in the schema. The estimate loses sight of
// the size of what orValue, string and transformList return, so the rules below say has(x) ? ... and go through the
// object's own lists; a map that was made along the way is only ever asked for a key, which has a fixed cost. A quantity
// counts as 3 MB of text: rules that parse more than a few of them are policies (config/policies.yaml) instead.

var rules = []rule{
	{
		crd: jobs, at: "",
		cel: `
self.spec.tasks.all(i, t,
  size(self.metadata.name) + (has(t.name) ? size(t.name) : 7 + size(string(i))) +
  size(string(has(t.replicas) && t.replicas > 1 ? t.replicas - 1 : 0)) + 2 <= 63)`,
		message: "metadata.name: too long: pods are called NAME-TASK-INDEX, which must be at most 63 characters",
	},
	{
		crd: jobs, at: "",
		cel: `
!self.metadata.name.contains('.') ||
!has(self.spec.plugins) || !self.spec.plugins.exists(p, p in ['svc', 'tensorflow', 'pytorch', 'mpi', 'ray'])`,
		message: "metadata.name: must not contain dots with the plugins svc, tensorflow, pytorch, mpi and ray: it is the name of a Service",
	},
	{
		crd: jobs, at: "spec", field: ".tasks",
		cel: `
self.tasks.all(i, t, has(t.name)
  ? self.tasks.exists_one(u, has(u.name) && u.name == t.name)
  : !self.tasks.exists(u, has(u.name) && u.name.startsWith('default') && u.name.substring(7) == string(i)))`,
		message: "tasks must have different names; a task without one is called default and its index",
	},
	{
		crd: jobs, at: "spec", field: ".tasks",
		cel: `
!self.tasks.exists(t, has(t.dependsOn)) ||
[self.tasks.transformMapEntry(i, t, has(t.name), {t.name: true})].all(names,
[self.tasks.transformMapEntry(i, t, !has(t.name), {string(i): true})].all(unnamed,
  self.tasks.all(t, !(` + waits + `) ||
    t.dependsOn.name.all(d, d in names || d.startsWith('default') && d.substring(7) in unnamed))))`,
		message: "dependsOn.name: no such task",
	},
	{
		crd: jobs, at: "spec", field: ".tasks",
		cel: acyclic(dependencyRounds),
		message: fmt.Sprintf("dependsOn.name: tasks must not wait for each other in a circle, nor in a chain of more than %d",
			dependencyRounds),
	},
	{
		crd: jobs, at: "spec", field: ".plugins",
		cel: `
!has(self.plugins) || !('mpi' in self.plugins) ||
self.tasks.exists(t, has(t.name) &&
  (self.plugins['mpi'].exists(a, a.startsWith('--master') || a.startsWith('-master'))
    ? self.plugins['mpi'].exists(a, a == '--master=' + t.name || a == '-master=' + t.name || a == t.name)
    : t.name == 'master'))`,
		message: "mpi: the master task does not exist; it is called master, or what --master= says",
	},
	unchanging(jobs, "spec", "schedulerName", "volumes", "policies", "plugins", "runningEstimate", "queue", "maxRetry",
		"ttlSecondsAfterFinished", "minSuccess", "networkTopology"),
	{
		crd: jobs, at: "spec", field: ".tasks",
		cel:     `self.tasks.size() == oldSelf.tasks.size()`,
		message: "tasks may not be added or removed after creation",
	},
	{
		crd: jobs, at: "spec", field: ".tasks",
		cel: "self.tasks.size() != oldSelf.tasks.size() ||\nself.tasks.all(i, t,\n" +
			strings.Join(each([]string{"name", "template", "policies", "topologyPolicy", "maxRetry", "dependsOn", "partitionPolicy"},
				func(f string) string { return same("t", "oldSelf.tasks[i]", f) }), " &&\n") + ")",
		message: "of a task only replicas and minAvailable may change after creation",
	},
	{
		crd: jobs, at: "spec.plugins",
		cel:     `self.all(p, p in ` + plugins + `)`,
		message: "unknown plugin; there are env, svc, ssh, tensorflow, pytorch, mpi, ray and hcclrank",
	},
	{
		crd: jobs, at: "spec.tasks.[]", field: ".minAvailable",
		cel: `
!has(self.partitionPolicy) || !has(self.minAvailable) ||
!has(self.partitionPolicy.minPartitions) || self.partitionPolicy.minPartitions == 0 ||
self.partitionPolicy.minPartitions * self.partitionPolicy.partitionSize == self.minAvailable`,
		message: "minAvailable must equal partitionPolicy.minPartitions times partitionPolicy.partitionSize",
	},
	eventOnce("spec.policies"), eventAlone("spec.policies"),
	eventOnce("spec.tasks.[].policies"), eventAlone("spec.tasks.[].policies"),
	{
		crd: queues, at: "",
		cel: `
self.metadata.name != 'root' ||
` + same("self.spec", "oldSelf.spec", "capability") + ` &&
` + same("self.spec", "oldSelf.spec", "deserved") + ` &&
` + same("self.spec", "oldSelf.spec", "guarantee"),
		message: "spec.capability, spec.deserved and spec.guarantee of the root queue may not change: it is the whole cluster",
	},
}

const plugins = `['env', 'svc', 'ssh', 'tensorflow', 'pytorch', 'mpi', 'ray', 'hcclrank']`

// dependencyRounds bounds the chains of tasks that wait for each other: CEL has no loops.
const dependencyRounds = 10

// acyclic takes away, round by round, the tasks that wait for none of those left. What is left in the end waits in a
// circle, or in a longer chain. Tasks without a name are left to the controller.
func acyclic(rounds int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "!self.tasks.exists(t, has(t.dependsOn)) ||\n")
	fmt.Fprintf(&b, "[self.tasks.transformMapEntry(i, t, has(t.name) && %s, {t.name: true})].all(r0,\n", waits)
	for i := range rounds {
		fmt.Fprintf(&b, "[self.tasks.transformMapEntry(i, t, has(t.name) && t.name in r%d && t.dependsOn.name.exists(d, d in r%d), {t.name: true})].all(r%d,\n",
			i, i, i+1)
	}
	fmt.Fprintf(&b, "size(r%d) == 0%s", rounds, strings.Repeat(")", rounds+1))
	return b.String()
}

// same says that the field is equal in two objects, or in neither.
func same(a, b, field string) string {
	return fmt.Sprintf("(has(%[1]s.%[3]s) ? has(%[2]s.%[3]s) && %[1]s.%[3]s == %[2]s.%[3]s : !has(%[2]s.%[3]s))", a, b, field)
}

// unchanging refuses changes to fields, and names those that were changed.
func unchanging(crd, at string, fields ...string) rule {
	return rule{
		crd: crd, at: at,
		cel:     strings.Join(each(fields, func(f string) string { return same("self", "oldSelf", f) }), " &&\n"),
		message: "may not change after creation: " + strings.Join(fields, ", "),
		messageCEL: "'may not change after creation: ' + " + first(fields, func(f string) string {
			return "!" + same("self", "oldSelf", f)
		}),
	}
}

// first is the first of names for which the condition holds.
func first(names []string, cond func(string) string) string {
	var b strings.Builder
	for _, n := range names {
		fmt.Fprintf(&b, "(%s ? '%s' :\n", cond(n), n)
	}
	b.WriteString("'?'" + strings.Repeat(")", len(names)))
	return b.String()
}

func each(list []string, f func(string) string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}

var events = []string{"*", "PodPending", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated"}

// eventOnce refuses policies of which two react to the same event: which one acts would be a matter of chance.
func eventOnce(at string) rule {
	twice := func(e string) string {
		return fmt.Sprintf("self.filter(p, has(p.event) && p.event == '%[1]s' || has(p.events) && '%[1]s' in p.events).size() > 1", e)
	}
	return rule{
		crd: jobs, at: at,
		cel:        "!(" + strings.Join(each(events, twice), " ||\n") + ")",
		message:    "an event must not be in two policies",
		messageCEL: "'in two policies: event ' + " + first(events, twice),
	}
}

// eventAlone refuses other events beside the one that stands for all.
func eventAlone(at string) rule {
	return rule{
		crd: jobs, at: at,
		cel: `
!self.exists(p, has(p.event) && p.event == '*' || has(p.events) && '*' in p.events) ||
!self.exists(p, has(p.event) && p.event != '*' || has(p.events) && p.events.exists(e, e != '*'))`,
		message: "event * is every event: no other event may stand beside it",
	}
}
