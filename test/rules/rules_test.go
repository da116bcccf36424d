package rules

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/admission"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithInstall()) }

var (
	jobs   = schema.GroupVersionResource{Group: "batch.volcano.sh", Version: "v1alpha1", Resource: "jobs"}
	groups = schema.GroupVersionResource{Group: "scheduling.volcano.sh", Version: "v1beta1", Resource: "podgroups"}
	queues = schema.GroupVersionResource{Group: "scheduling.volcano.sh", Version: "v1beta1", Resource: "queues"}
	cmds   = schema.GroupVersionResource{Group: "bus.volcano.sh", Version: "v1alpha1", Resource: "commands"}
	crons  = schema.GroupVersionResource{Group: "batch.volcano.sh", Version: "v1alpha1", Resource: "cronjobs"}
	flows  = schema.GroupVersionResource{Group: "flow.volcano.sh", Version: "v1alpha1", Resource: "jobflows"}
)

var workflows = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}

var kinds = map[schema.GroupVersionResource]string{workflows: "Workflow", jobs: "Job", groups: "PodGroup", queues: "Queue", cmds: "Command", crons: "CronJob", flows: "JobFlow"}

// template is the smallest pod template.
const template = `{spec: {containers: [{name: c, image: i}]}}`

// task returns a task with the given fields and a template.
func task(fields string) string { return "{" + fields + ", template: " + template + "}" }

// job returns a job with the given fields and one task of two pods.
func job(fields string) string { return fields + "\ntasks: [" + task("name: w, replicas: 2") + "]" }

// withResources returns a job of one container with the given resources.
func withResources(resources string) string {
	return "tasks: [{replicas: 1, template: {spec: {containers: [{name: c, image: i, resources: " + resources + "}]}}}]"
}

// cron returns a CronJob with the given schedule and fields.
func cron(schedule, fields string) string {
	return fmt.Sprintf("{schedule: %q, %s jobTemplate: {spec: {%s}}}", schedule, fields, tasks(task("replicas: 1")))
}

// podOf returns a job of one pod with resources of its own, which has two containers of 2 CPUs.
func podOf(resources string) string {
	container := "{name: %s, image: i, resources: {requests: {cpu: 2}}}"
	return "tasks: [{replicas: 1, template: {spec: {resources: " + resources + ", containers: [" +
		fmt.Sprintf(container, "a") + ", " + fmt.Sprintf(container, "b") + "]}}}]"
}

// chainOfFlows returns a JobFlow of n entries, each of which waits for the next.
func chainOfFlows(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("{name: f%d, dependsOn: {targets: [f%d]}}", i, i+1)
	}
	list[n-1] = fmt.Sprintf("{name: f%d}", n-1)
	return "{flows: [" + strings.Join(list, ", ") + "]}"
}

// steps returns a workflow of one container.
func steps(container string) string {
	return "{entrypoint: main, templates: [{name: main, container: " + container + "}]}"
}

// withPolicies returns a job with the given policies.
func withPolicies(policies string) string { return job("policies: [" + policies + "]") }

// tasks returns a job of the given tasks.
func tasks(list ...string) string { return "tasks: [" + strings.Join(list, ", ") + "]" }

// client returns a client of the shared cluster. It waits until the cluster's policies are in
// effect, which is a moment after their creation.
func client(t *testing.T) dynamic.Interface {
	t.Helper()
	c := dynamic.NewForConfigOrDie(localtest.Shared(t).RESTConfig())
	bad := map[schema.GroupVersionResource]string{
		jobs:   job("queue: root"),
		queues: "guarantee: {resource: {cpu: 1}}",
	}
	for resource, spec := range bad {
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			return create(t, c, resource, "probe", spec, true) != nil, nil
		})
		if err != nil {
			t.Fatalf("the policies for %s are not in force: %v", resource.Resource, err)
		}
	}
	return c
}

func object(t *testing.T, resource schema.GroupVersionResource, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if resource == cmds {
		u.Object = fields
	} else {
		if annotations, ok := fields["annotations"]; ok {
			delete(fields, "annotations")
			u.Object["metadata"] = map[string]any{"annotations": annotations}
		}
		u.Object["spec"] = fields
	}
	u.SetAPIVersion(resource.GroupVersion().String())
	u.SetKind(kinds[resource])
	u.SetName(name)
	return u
}

func in(c dynamic.Interface, resource schema.GroupVersionResource) dynamic.ResourceInterface {
	if resource == queues || resource == topologies {
		return c.Resource(resource)
	}
	return c.Resource(resource).Namespace("default")
}

func create(t *testing.T, c dynamic.Interface, resource schema.GroupVersionResource, name, spec string, dry bool) error {
	t.Helper()
	opts := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	_, err := in(c, resource).Create(t.Context(), object(t, resource, name, spec), opts)
	return err
}

// TestAThousandTasks checks that jobs of many tasks are accepted and compared, although comparing each name
// with all others would cost more than a rule may.
func TestAThousandTasks(t *testing.T) {
	c := client(t)
	many := func(change func(i int, fields string) string) string {
		list := make([]string, 1000)
		for i := range list {
			fields := fmt.Sprintf("name: w%d, replicas: 1", i)
			if change != nil {
				fields = change(i, fields)
			}
			list[i] = task(fields)
		}
		return tasks(list...)
	}
	chain := func(on string) func(int, string) string { // tasks wait for the one before, in chains of three
		return func(i int, fields string) string {
			if i%3 == 0 {
				return fields + ", policies: [{event: PodFailed, action: RestartTask}]"
			}
			return fmt.Sprintf("%s, dependsOn: {name: [%s%d]}", fields, on, i-1)
		}
	}
	for what, spec := range map[string]string{"plain": many(nil), "that wait for each other": many(chain("w"))} {
		if err := create(t, c, jobs, "x", spec, true); err != nil {
			t.Errorf("1000 tasks %s: %.300v", what, err)
		}
	}
	for want, spec := range map[string]string{
		"key w7 already exists": many(func(i int, fields string) string {
			return strings.Replace(fields, "w900,", "w7,", 1)
		}),
		"spec.tasks[*].dependsOn.name: there is no such task": many(chain("v")),
	} {
		if err := create(t, c, jobs, "x", spec, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %.1000v", want, err)
		}
	}
}

func TestCreateRefused(t *testing.T) {
	c := client(t)
	long := strings.Repeat("a", 60)
	for _, tc := range []struct {
		what     string
		resource schema.GroupVersionResource
		name     string // "x" if empty
		spec     string
		want     string // the field that the message must name, and more if that helps
	}{
		{"an estimate that is no duration", jobs, "", job("runningEstimate: abc"), "spec.runningEstimate"},
		{"a negative estimate", jobs, "", job("runningEstimate: -5s"), "spec.runningEstimate"},
		{"a timeout that is no duration", jobs, "", withPolicies("{action: AbortJob, event: PodPending, timeout: abc}"), "spec.policies[0].timeout"},
		{"a negative request", jobs, "", withResources("{requests: {cpu: -5}}"), "resources.requests.cpu"},
		{"a negative request as a string", jobs, "", withResources("{requests: {cpu: '-5'}}"), "resources.requests.cpu"},
		{"a negative limit", jobs, "", withResources("{limits: {memory: -1Gi}}"), "resources.limits.memory"},
		{"a request that is no quantity", jobs, "", withResources("{requests: {cpu: 1e1.5}}"), "resources.requests.cpu"},
		{"a volume's size that is no quantity", jobs, "", "tasks: [{replicas: 1, template: {spec: {containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {sizeLimit: 1e1.5}}]}}}]", "sizeLimit"},
		{"a queue's capability that is no quantity", queues, "", "capability: {cpu: 1e1.5}", "spec.capability.cpu"},
		{"a workflow's image that is an object", workflows, "", steps("{image: {}}"), "container.image"},
		{"a workflow's request that is no quantity", workflows, "", steps("{image: i, resources: {requests: {cpu: abc}}}"), "resources.requests.cpu"},
		{"a workflow's negative request", workflows, "", steps("{image: i, resources: {requests: {cpu: -5}}}"), "resources.requests.cpu"},
		{"no tasks", jobs, "", "{}", "spec.tasks"},
		{"an empty list of tasks", jobs, "", "tasks: []", "spec.tasks"},
		{"a negative number of replicas", jobs, "", tasks(task("replicas: -1")), "spec.tasks[0].replicas"},
		{"more replicas than a cluster has pods", jobs, "", tasks(task("replicas: 2147483647")), "spec.tasks[0].replicas"},
		{"a negative minAvailable", jobs, "", job("minAvailable: -1"), "spec.minAvailable"},
		{"minAvailable above all replicas", jobs, "", job("minAvailable: 3"), "spec.minAvailable: must not be greater"},
		{"minAvailable with no replicas at all", jobs, "", "minAvailable: 1\n" + tasks(task("name: w")), "spec.minAvailable"},
		{"a task's negative minAvailable", jobs, "", tasks(task("replicas: 1, minAvailable: -1")), "spec.tasks[0].minAvailable"},
		{"a task's minAvailable above its replicas", jobs, "", tasks(task("replicas: 1"), task("replicas: 1, minAvailable: 2")), "spec.tasks[1].minAvailable"},
		{"two tasks of one name", jobs, "", tasks(task("name: w, replicas: 1"), task("name: w, replicas: 1")), "spec.tasks: name must differ"},
		{"a task called like one without a name", jobs, "", tasks(task("name: default1, replicas: 1"), task("replicas: 1")), "spec.tasks: name must differ"},
		{"a task's name in capitals", jobs, "", tasks(task("name: Worker, replicas: 1")), "spec.tasks[0].name"},
		{"a task's name of 64 characters", jobs, "", tasks(task("name: aaaa" + long + ", replicas: 1")), "spec.tasks[0].name"},
		{"names too long for pods", jobs, long, tasks(task("name: w, replicas: 1")), "metadata.name: too long"},
		{"names too long for the last pod only", jobs, long[:58], tasks(task("name: ww, replicas: 11")), "metadata.name: too long"},
		{"a dot in the name of a job with svc", jobs, "a.b", job("plugins: {svc: []}"), "metadata.name"},
		{"an unknown plugin", jobs, "", job("plugins: {env: [], horovod: []}"), "spec.plugins: unknown plugin horovod"},
		{"mpi without a master", jobs, "", job("plugins: {mpi: []}"), "spec.plugins[mpi]"},
		{"mpi with a master that is no task", jobs, "", job(`plugins: {mpi: ["--master=chief"]}`), "spec.plugins[mpi]"},
		{"both tiers", jobs, "", job("networkTopology: {highestTierAllowed: 1, highestTierName: rack}"), "highestTierName"},
		{"a negative tier", jobs, "", job("networkTopology: {highestTierAllowed: -1}"), "spec.networkTopology.highestTierAllowed"},
		{"an unknown topology mode", jobs, "", job("networkTopology: {mode: firm}"), "spec.networkTopology.mode"},
		{"both tiers in a partition", jobs, "", tasks(task("replicas: 2, partitionPolicy: {totalPartitions: 1, partitionSize: 2, networkTopology: {highestTierAllowed: 1, highestTierName: r}}")), "highestTierName"},
		{"a policy on events and an exit code", jobs, "", withPolicies("{action: AbortJob, event: PodFailed, exitCode: 1}"), "spec.policies: exitCode"},
		{"a task's policy on events and an exit code", jobs, "", tasks(task("name: w, replicas: 1"), task("replicas: 1, policies: [{action: AbortJob, events: [PodFailed], exitCode: 1}]")), "spec.tasks[1].policies: exitCode"},
		{"a policy on nothing", jobs, "", withPolicies("{action: AbortJob}"), "spec.policies: one of event"},
		{"a policy without an action", jobs, "", withPolicies("{event: PodFailed}"), "spec.policies[0].action"},
		{"an unknown event", jobs, "", withPolicies("{action: AbortJob, event: PodExploded}"), "spec.policies[0].event"},
		{"an internal event", jobs, "", withPolicies("{action: AbortJob, event: OutOfSync}"), "spec.policies[0].event"},
		{"an unknown event in a list", jobs, "", withPolicies("{action: AbortJob, events: [PodFailed, Nonsense]}"), "spec.policies[0].events[1]"},
		{"an unknown action", jobs, "", withPolicies("{action: Explode, event: PodFailed}"), "spec.policies[0].action"},
		{"an internal action", jobs, "", withPolicies("{action: SyncJob, event: PodFailed}"), "spec.policies[0].action"},
		{"a task's unknown action", jobs, "", tasks(task("replicas: 1, policies: [{action: Explode, event: PodFailed}]")), "spec.tasks[0].policies[0].action"},
		{"one event in two policies", jobs, "", withPolicies("{action: AbortJob, event: PodFailed}, {action: RestartJob, events: [PodEvicted, PodFailed]}"), "policies[*].events: must not be in two policies: PodFailed"},
		{"one event in two policies of a task", jobs, "", tasks(task("replicas: 1, policies: [{action: AbortJob, event: PodFailed}, {action: RestartTask, event: PodFailed}]")), "policies[*].events"},
		{"the exit code 0", jobs, "", withPolicies("{action: AbortJob, exitCode: 0}"), "policies[*].exitCode: 0"},
		{"one exit code in two policies", jobs, "", withPolicies("{action: AbortJob, exitCode: 3}, {action: RestartJob, exitCode: 3}"), "policies[*].exitCode: must not be in two"},
		{"another event beside *", jobs, "", withPolicies("{action: AbortJob, event: '*'}, {action: RestartJob, event: PodFailed}"), "policies[*].events: *"},
		{"another event in one list with *", jobs, "", withPolicies("{action: AbortJob, events: ['*', PodFailed]}"), "policies[*].events: *"},
		{"a topology policy and no CPU request", jobs, "", tasks(task("replicas: 1, topologyPolicy: restricted")), "spec.tasks[*].topologyPolicy"},
		{"a topology policy and half a CPU", jobs, "", tasks("{replicas: 1, topologyPolicy: restricted, template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}}"), "resources.requests.cpu"},
		{"an unknown topology policy", jobs, "", tasks(task("replicas: 1, topologyPolicy: strict")), "spec.tasks[0].topologyPolicy"},
		{"no partitions", jobs, "", tasks(task("replicas: 0, partitionPolicy: {totalPartitions: 0, partitionSize: 2}")), "partitionPolicy.totalPartitions"},
		{"partitions of no size", jobs, "", tasks(task("replicas: 0, partitionPolicy: {totalPartitions: 2, partitionSize: 0}")), "partitionPolicy.partitionSize"},
		{"partitions that do not make up the replicas", jobs, "", tasks(task("replicas: 5, partitionPolicy: {totalPartitions: 2, partitionSize: 2}")), "spec.tasks[*].replicas"},
		{"a minAvailable that is no number of partitions", jobs, "", tasks(task("replicas: 4, minAvailable: 3, partitionPolicy: {totalPartitions: 2, partitionSize: 2, minPartitions: 1}")), "spec.tasks[*].minAvailable"},
		{"more minimal partitions than partitions", jobs, "", tasks(task("replicas: 4, partitionPolicy: {totalPartitions: 2, partitionSize: 2, minPartitions: 3}")), "partitionPolicy.minPartitions"},
		{"a volume without a mount path", jobs, "", job("volumes: [{volumeClaimName: a}]"), "spec.volumes[0].mountPath"},
		{"a volume with an empty mount path", jobs, "", job("volumes: [{mountPath: '', volumeClaimName: a}]"), "spec.volumes[0].mountPath"},
		{"two volumes at one mount path", jobs, "", job("volumes: [{mountPath: /a, volumeClaimName: a}, {mountPath: /a, volumeClaimName: b}]"), "spec.volumes: mountPath"},
		{"a volume of nothing", jobs, "", job("volumes: [{mountPath: /a}]"), "spec.volumes: exactly one"},
		{"a volume with a name and a claim", jobs, "", job("volumes: [{mountPath: /a, volumeClaimName: a, volumeClaim: {accessModes: [ReadWriteOnce]}}]"), "spec.volumes: exactly one"},
		{"a volume with a bad name", jobs, "", job("volumes: [{mountPath: /a, volumeClaimName: A_b}]"), "spec.volumes[0].volumeClaimName"},
		{"the root queue", jobs, "", job("queue: root"), "spec.queue"},
		{"a bad queue name", jobs, "", job("queue: Team_A"), "spec.queue"},
		{"a dependency on an unknown task", jobs, "", tasks(task("name: a, replicas: 1, dependsOn: {name: [b]}")), "dependsOn.name: there is no such task"},
		{"a task that waits for itself", jobs, "", tasks(task("name: a, replicas: 1, dependsOn: {name: [a]}")), "dependsOn.name: tasks must not wait"},
		{"tasks that wait in a circle", jobs, "", tasks(task("name: a, replicas: 1, dependsOn: {name: [c]}"), task("name: b, replicas: 1, dependsOn: {name: [a]}"), task("name: c, replicas: 1, dependsOn: {name: [b]}"), task("name: d, replicas: 1")), "dependsOn.name: tasks must not wait"},
		{"a negative maxRetry", jobs, "", job("maxRetry: -1"), "spec.maxRetry"},
		{"a task's maxRetry below -1", jobs, "", tasks(task("replicas: 1, maxRetry: -2")), "spec.tasks[0].maxRetry"},
		{"a negative ttl", jobs, "", job("ttlSecondsAfterFinished: -1"), "spec.ttlSecondsAfterFinished"},
		{"minSuccess 0", jobs, "", job("minSuccess: 0"), "spec.minSuccess"},
		{"a typing error in the spec", jobs, "", job("minAvalable: 1"), "spec.minAvalable"},
		{"a typing error in a template", jobs, "", tasks("{replicas: 1, template: {spec: {containers: [{name: c, image: i, comand: [x]}]}}}"), "spec.containers[0].comand"},
		{"a task without a template", jobs, "", tasks("{replicas: 1, template: " + template + "}, {name: b, replicas: 1}"), "spec.tasks[1].template.spec"},
		{"an empty template", jobs, "", tasks("{replicas: 1, topologyPolicy: restricted, template: {}}"), "spec.tasks[0].template.spec"},
		{"a template without containers", jobs, "", tasks("{replicas: 1, template: {spec: {}}}"), "template.spec.containers"},
		{"a text for a number", jobs, "", tasks(task("replicas: many")), "spec.tasks[0].replicas"},

		{"a weight of 0", queues, "", "weight: 0", "spec.weight"},
		{"a weight above 65535", queues, "", "weight: 65536", "spec.weight"},
		{"a negative capability", queues, "", "capability: {cpu: -1}", "spec.capability.cpu"},
		{"a negative capability as text", queues, "", `capability: {memory: "-1Gi"}`, "spec.capability.memory"},
		{"a capability that is no quantity", queues, "", "capability: {cpu: lots}", "spec.capability.cpu"},
		{"a negative deserved", queues, "", "deserved: {cpu: -1}", "spec.deserved.cpu"},
		{"a negative guarantee", queues, "", "guarantee: {resource: {cpu: -1}}", "spec.guarantee.resource.cpu"},
		{"a guarantee above deserved", queues, "", "{deserved: {cpu: 1}, guarantee: {resource: {cpu: 1500m}}}", "spec.guarantee.resource: must not be greater than deserved: cpu"},
		{"a guarantee that is not deserved", queues, "", "guarantee: {resource: {cpu: 1}}", "spec.guarantee.resource"},
		{"a deserved above capability", queues, "", "{deserved: {memory: 2Gi}, capability: {memory: 1Gi}}", "spec.deserved: must not be greater than capability: memory"},
		{"a queue that is its own parent", queues, "x", "parent: x", "spec.parent"},
		{"a bad parent", queues, "", "parent: A_b", "spec.parent"},
		{"an unknown dequeue strategy", queues, "", "dequeueStrategy: lifo", "spec.dequeueStrategy"},
		{"a negative priority", queues, "", "priority: -1", "spec.priority"},
		{"a hierarchy without weights", queues, "", `annotations: {volcano.sh/hierarchy: root/a}`, "volcano.sh/hierarchy-weights"},
		{"a hierarchy with too few weights", queues, "", `annotations: {volcano.sh/hierarchy: root/a/b, volcano.sh/hierarchy-weights: 1/2}`, "volcano.sh/hierarchy-weights"},
		{"a hierarchy with a weight of 0", queues, "", `annotations: {volcano.sh/hierarchy: root/a, volcano.sh/hierarchy-weights: 1/0}`, "volcano.sh/hierarchy-weights"},

		{"a negative minMember", groups, "", "minMember: -1", "spec.minMember"},
		{"a negative minTaskMember", groups, "", "minTaskMember: {w: -1}", "spec.minTaskMember"},
		{"a PodGroup in a badly named queue", groups, "", "queue: Team_A", "spec.queue"},
		{"both tiers in a PodGroup", groups, "", "networkTopology: {highestTierAllowed: 1, highestTierName: rack}", "highestTierName"},
		{"both tiers in a sub-group", groups, "", "subGroupPolicy: [{networkTopology: {highestTierAllowed: 1, highestTierName: rack}}]", "highestTierName"},
		{"a sub-group of no size", groups, "", "subGroupPolicy: [{subGroupSize: 0}]", "spec.subGroupPolicy[0].subGroupSize"},
		{"an affinity to groups without a tier", groups, "", "topologyAffinity: {podGroupAntiAffinity: {required: [{podGroupSelector: {}}]}}", "want one of topologyTier and topologyTierName"},
		{"an affinity to groups with two tiers", groups, "", "topologyAffinity: {podGroupAntiAffinity: {required: [{podGroupSelector: {}, topologyTier: 1, topologyTierName: rack}]}}", "want one of topologyTier and topologyTierName"},
		{"an affinity to no groups", groups, "", "topologyAffinity: {podGroupAntiAffinity: {required: [{topologyTier: 1}]}}", "podGroupSelector"},
		{"a weight of what is required", groups, "", "topologyAffinity: {podGroupAntiAffinity: {required: [{podGroupSelector: {}, topologyTier: 1, weight: 5}]}}", "required terms have no weight"},
		{"a preference without a weight", groups, "", "topologyAffinity: {subGroupAffinity: {preferred: [{subGroups: [a, b], topologyTier: 1}]}}", "preferred terms have a weight"},
		{"an affinity to no sub-groups", groups, "", "topologyAffinity: {subGroupAntiAffinity: {required: [{subGroups: [], topologyTier: 1}]}}", "subGroups"},
		{"negative minResources", groups, "", "minResources: {cpu: -1}", "spec.minResources.cpu"},
		{"a schedule of words", crons, "", cron("error schedule", ""), "spec.schedule"},
		{"a schedule of four fields", crons, "", cron("0 0 * *", ""), "spec.schedule"},
		{"a minute that there is not", crons, "", cron("61 * * * *", ""), "spec.schedule"},
		{"a weekday that there is not", crons, "", cron("0 0 * * 8", ""), "spec.schedule"},
		{"an unknown name of a schedule", crons, "", cron("@fortnightly", ""), "spec.schedule"},
		{"a schedule of every nothing", crons, "", cron("@every soon", ""), "spec.schedule"},
		{"a time zone in the schedule", crons, "", cron("TZ=UTC 0 20 * * *", ""), "spec.schedule"},
		{"a time zone with a dot", crons, "", cron("@daily", "timeZone: Asia/./Shanghai,"), "spec.timeZone"},
		{"a time zone with a hyphen", crons, "", cron("@daily", "timeZone: America/-NewYork,"), "spec.timeZone"},
		{"a time zone with a space", crons, "", cron("@daily", "timeZone: New York,"), "spec.timeZone"},
		{"a time zone with an exclamation mark", crons, "", cron("@daily", "timeZone: UTC!,"), "spec.timeZone"},
		{"a time zone that is not known", crons, "", cron("@daily", "timeZone: Amerrica/New_York,"), "spec.timeZone"},
		{"an offset for a time zone", crons, "", cron("@daily", `timeZone: "+01:00",`), "spec.timeZone"},
		{"a flow that waits for none", flows, "", "{flows: [{name: b, dependsOn: {targets: [a]}}, {name: c, dependsOn: {targets: [a, b]}}]}", "spec.flows[0].dependsOn.targets: there is no entry a"},
		{"flows in a circle", flows, "", "{flows: [{name: a, dependsOn: {targets: [b]}}, {name: b, dependsOn: {targets: [a]}}, {name: c, dependsOn: {targets: [a]}}, {name: d}]}", "spec.flows[*].dependsOn.targets: entries must not wait for each other in a circle: a, b, c"},
		{"a flow that waits for itself", flows, "", "{flows: [{name: a, dependsOn: {targets: [a]}}]}", "in a circle: a"},
		{"a pod that requests less than its containers", jobs, "", podOf("{requests: {cpu: 3}}"), "spec.tasks[0].template.spec.resources.requests"},
		{"a pod that requests more than its limits", jobs, "", podOf("{requests: {cpu: 6}, limits: {cpu: 5}}"), "spec.tasks[0].template.spec.resources.requests"},

		{"an unknown action in a Command", cmds, "", "action: Explode", "action"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			name := tc.name
			if name == "" {
				name = "x"
			}
			err := create(t, c, tc.resource, name, tc.spec, true)
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) {
				t.Fatalf("got %v, want a refusal", err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the message does not say %q: %v", tc.want, err)
			}
			if offline := refusals(t, object(t, tc.resource, name, tc.spec)); !strings.Contains(offline, tc.want) {
				t.Errorf("without a cluster the message does not say %q: %s", tc.want, offline)
			}
		})
	}
}

// refusals returns what package admission says of an object, a refusal a line.
func refusals(t *testing.T, u *unstructured.Unstructured) string {
	t.Helper()
	rules, err := admission.New(config.CRDs(), config.Policies())
	if err != nil {
		t.Fatal(err)
	}
	list, err := rules.Check(u)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range list {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}

func TestUpdates(t *testing.T) {
	c := client(t)
	base := `{minAvailable: 2, queue: q, tasks: [` + task("name: a, replicas: 2") + `, ` + task("name: b, replicas: 2") + `]}`
	for i, tc := range []struct {
		what     string
		resource schema.GroupVersionResource
		before   string
		path     []string
		value    any
		want     string // empty if the update is allowed
	}{
		{"minAvailable", jobs, base, []string{"spec", "minAvailable"}, int64(3), ""},
		{"priorityClassName", jobs, base, []string{"spec", "priorityClassName"}, "high", ""},
		{"a label", jobs, base, []string{"metadata", "labels"}, map[string]any{"a": "b"}, ""},
		{"more replicas", jobs, base, []string{"spec", "tasks", "0", "replicas"}, int64(5), ""},
		{"a task's minAvailable", jobs, base, []string{"spec", "tasks", "0", "minAvailable"}, int64(1), ""},
		{"minAvailable above all replicas", jobs, base, []string{"spec", "minAvailable"}, int64(9), "spec.minAvailable"},
		{"a task's minAvailable above its replicas", jobs, base, []string{"spec", "tasks", "1", "minAvailable"}, int64(9), "spec.tasks[1].minAvailable"},
		{"fewer replicas than the job needs", jobs, base, []string{"spec", "minAvailable"}, int64(5), "spec.minAvailable"},
		{"the queue", jobs, base, []string{"spec", "queue"}, "other", "spec.queue: may not change"},
		{"maxRetry", jobs, base, []string{"spec", "maxRetry"}, int64(9), "spec.maxRetry"},
		{"schedulerName", jobs, base, []string{"spec", "schedulerName"}, "other", "spec.schedulerName"},
		{"plugins", jobs, base, []string{"spec", "plugins"}, map[string]any{"env": []any{}}, "spec.plugins"},
		{"ttl", jobs, base, []string{"spec", "ttlSecondsAfterFinished"}, int64(9), "spec.ttlSecondsAfterFinished"},
		{"a task's name", jobs, base, []string{"spec", "tasks", "1", "name"}, "c", "spec.tasks[*].name"},
		{"a task's template", jobs, base, []string{"spec", "tasks", "1", "template", "spec", "restartPolicy"}, "Never", "spec.tasks[*].template"},
		{"the number of tasks", jobs, base, []string{"spec", "tasks"}, []any{map[string]any{"name": "a", "replicas": int64(2), "template": map[string]any{
			"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}}, "spec.tasks: may not be added"},
		{"a queue's weight", queues, "{}", []string{"spec", "weight"}, int64(9), ""},
		{"a queue's deserved above its capability", queues, "capability: {cpu: 1}", []string{"spec", "deserved"}, map[string]any{"cpu": "2"}, "spec.deserved"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			name := fmt.Sprintf("update-%d", i)
			if err := create(t, c, tc.resource, name, tc.before, false); err != nil {
				t.Fatal(err)
			}
			u, err := in(c, tc.resource).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			set(u.Object, tc.path, tc.value)
			_, err = in(c, tc.resource).Update(t.Context(), u, metav1.UpdateOptions{})
			if tc.want == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want a refusal that says %q", err, tc.want)
			}
		})
	}
}

// set sets a field of an object. A number in path is an index.
func set(at any, path []string, value any) {
	if list, ok := at.([]any); ok {
		i := int(path[0][0] - '0')
		set(list[i], path[1:], value)
		return
	}
	m := at.(map[string]any)
	if len(path) == 1 {
		m[path[0]] = value
		return
	}
	set(m[path[0]], path[1:], value)
}

func TestPermanentQueues(t *testing.T) {
	c := client(t)
	for _, name := range []string{"default", "root"} {
		err := c.Resource(queues).Delete(t.Context(), name, metav1.DeleteOptions{})
		if err == nil || !strings.Contains(err.Error(), "may not be deleted") {
			t.Errorf("deleting queue %s: got %v, want a refusal", name, err)
		}
	}
	root, err := c.Resource(queues).Get(t.Context(), "root", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set(root.Object, []string{"spec", "capability"}, map[string]any{"cpu": "1"})
	_, err = c.Resource(queues).Update(t.Context(), root, metav1.UpdateOptions{})
	if err == nil || !strings.Contains(err.Error(), "spec.capability") {
		t.Errorf("limiting the root queue: got %v, want a refusal that names spec.capability", err)
	}
	if err := create(t, c, queues, "gone", "{}", false); err != nil {
		t.Fatal(err)
	}
	if err := c.Resource(queues).Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting another queue: %v", err)
	}
}

func TestAcceptedWithDefaults(t *testing.T) {
	c := client(t)
	for what, tc := range map[string]struct {
		resource schema.GroupVersionResource
		spec     string
		defaults map[string]any // by dotted path
	}{
		"the least that a job can say": {jobs, tasks("{replicas: 1, template: " + template + "}"), map[string]any{
			"spec.schedulerName": "lockstep", "spec.queue": "default", "spec.maxRetry": int64(3)}},
		"a job for volcano with an explicit maxRetry of 0": {jobs, job("schedulerName: volcano\nmaxRetry: 0\nminAvailable: 1"), map[string]any{"spec.maxRetry": int64(0)}},
		"a task that restarts never fail":                  {jobs, tasks(task("replicas: 1, maxRetry: -1")), nil},
		"mpi with ssh and svc": {jobs, `{minAvailable: 3, plugins: {ssh: [], svc: [], mpi: ["--master=mpimaster", "--worker=mpiworker", "--port=22"]},
			policies: [{event: PodEvicted, action: RestartJob}], queue: q,
			tasks: [{replicas: 1, name: mpimaster, policies: [{event: TaskCompleted, action: CompleteJob}], template: ` + template + `},
			{replicas: 2, name: mpiworker, dependsOn: {name: [mpimaster]}, template: ` + template + `}]}`, nil},
		"ten thousand pods and dozens of tasks": {jobs, func() string {
			var list []string
			for i := range 40 {
				list = append(list, task(fmt.Sprintf("name: t%d, replicas: 10000", i)))
			}
			return tasks(list...)
		}(), nil},
		"a chain of tasks listed in any order": {jobs, tasks(task("name: c, replicas: 1, dependsOn: {name: [b]}"),
			task("name: b, replicas: 1, dependsOn: {name: [a, default3], iteration: any}"), task("name: a, replicas: 1"), task("replicas: 1")), nil},
		"volumes, partitions, and a NUMA policy": {jobs, `{volumes: [{mountPath: /in, volumeClaimName: in}, {mountPath: /out, volumeClaim: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}],
			tasks: [{replicas: 4, partitionPolicy: {totalPartitions: 2, partitionSize: 2}, topologyPolicy: single-numa-node,
			template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}}}]}`, nil},
		"an empty queue":         {queues, "{}", map[string]any{"spec.weight": int64(1), "spec.reclaimable": true, "spec.dequeueStrategy": "traverse"}},
		"a queue of limits":      {queues, "{capability: {cpu: 10, nvidia.com/gpu: 8}, deserved: {cpu: 5}, guarantee: {resource: {cpu: 1}}, parent: root}", nil},
		"a pod's own resources":  {jobs, podOf("{requests: {cpu: 4, hugepages-2Mi: 2Gi}, limits: {cpu: 4, memory: 1Gi, hugepages-2Mi: 2Gi}}"), nil},
		"a cron of five minutes": {crons, cron("*/5 * * * *", "timeZone: Pacific/Honolulu,"), nil},
		"a cron of all there is": {crons, cron("0,30 9-17/2 ?,1-31 jan-MAR,12 mon-5", "timeZone: Etc/GMT+5,"), nil},
		"a cron of an interval":  {crons, cron("@every 1h30m", ""), nil},
		"a cron by its name":     {crons, cron("@midnight", ""), nil},
		"flows in a chain":       {flows, chainOfFlows(40), nil},
		"flows in a chain of 16": {flows, chainOfFlows(16), nil},
		"two flows of one name":  {flows, "{flows: [{name: a}, {name: a}, {name: b, dependsOn: {targets: [a]}}]}", nil},
		"an empty PodGroup":      {groups, "{}", map[string]any{"spec.queue": "default"}},
		"a Command":              {cmds, "{action: AbortJob, target: {apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: j, uid: u}}", nil},
	} {
		t.Run(what, func(t *testing.T) {
			u, err := in(c, tc.resource).Create(t.Context(), object(t, tc.resource, "valid", tc.spec),
				metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if offline := refusals(t, object(t, tc.resource, "valid", tc.spec)); offline != "" {
				t.Errorf("without a cluster it is refused: %s", offline)
			}
			for path, want := range tc.defaults {
				got, _, err := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
				if err != nil || got != want {
					t.Errorf("%s: got %v (%v), want %v", path, got, err, want)
				}
			}
		})
	}
}
