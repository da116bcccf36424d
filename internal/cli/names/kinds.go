package names

import (
	"strings"
)

// Kind holds the words that users may write for one kind, the same as kubectl accepts.
type Kind struct {
	// resource is the plural with the group, for example jobs.batch.volcano.sh.
	resource string
	// singular and short are further words for the kind, for example job and vcjob.
	singular string
	short    []string
}

func (k Kind) plural() string {
	plural, _, _ := strings.Cut(k.resource, ".")
	return plural
}

func (k Kind) group() string {
	_, group, _ := strings.Cut(k.resource, ".")
	return group
}

// Has reports whether word is the plural, the singular or a short form of the kind. The plural and
// the singular may have the group appended.
func (k Kind) Has(word string) bool {
	word = strings.ToLower(word)
	for _, s := range k.short {
		if word == s {
			return true
		}
	}
	name, group, dotted := strings.Cut(word, ".")
	if name != k.plural() && name != k.singular {
		return false
	}
	// kubectl also accepts jobs.v1.batch.
	return !dotted || group == k.group() || strings.HasPrefix(group, "v") && strings.HasSuffix(group, "."+k.group())
}

// The kinds whose objects verbs take by name.
var (
	Workflow         = Kind{"workflows.argoproj.io", "workflow", []string{"wf"}}
	WorkflowTemplate = Kind{"workflowtemplates.argoproj.io", "workflowtemplate",
		[]string{"wftmpl", "template", "templates", "workflow-template"}}
	ClusterWorkflowTemplate = Kind{"clusterworkflowtemplates.argoproj.io", "clusterworkflowtemplate",
		[]string{"cwft", "clusterwftmpl", "cluster-template", "cluster-workflow-template"}}
	CronWorkflow = Kind{"cronworkflows.argoproj.io", "cronworkflow",
		[]string{"cwf", "cronwf", "cron", "crons", "cron-workflow"}}
	Application = Kind{"applications.core.oam.dev", "application", []string{"app", "apps"}}
	Cluster     = Kind{"clusters", "cluster", nil}
	Job         = Kind{"jobs.batch.volcano.sh", "job", []string{"vcjob", "vj"}}
	Queue       = Kind{"queues.scheduling.volcano.sh", "queue", []string{"q"}}
	Node        = Kind{"nodes", "node", []string{"no"}}
	Pod         = Kind{"pods", "pod", []string{"po"}}
)

// knownKinds lists the kinds of Lockstep and of Kubernetes itself. Every verb reads a word for one
// of them before a name as a kind. A cluster may serve more kinds.
var knownKinds = []Kind{
	Workflow, WorkflowTemplate, ClusterWorkflowTemplate, CronWorkflow, Application, Job, Queue, Node, Pod, Cluster,
	{"cronjobs.batch.volcano.sh", "cronjob", []string{"cronvcjob", "cronvj"}},
	{"jobflows.flow.volcano.sh", "jobflow", []string{"jf"}},
	{"jobtemplates.flow.volcano.sh", "jobtemplate", []string{"jt"}},
	{"commands.bus.volcano.sh", "command", nil},
	{"podgroups.scheduling.volcano.sh", "podgroup", []string{"pg"}},
	{"nodetopologies.topology.lockstep.dev", "nodetopology", nil},
	{"componentdefinitions.core.oam.dev", "componentdefinition", []string{"comp"}},
	{"workloaddefinitions.core.oam.dev", "workloaddefinition", nil},
	{"traitdefinitions.core.oam.dev", "traitdefinition", []string{"trait"}},
	{"policydefinitions.core.oam.dev", "policydefinition", nil},
	{"workflowstepdefinitions.core.oam.dev", "workflowstepdefinition", []string{"workflowstep"}},
	{"definitionrevisions.core.oam.dev", "definitionrevision", nil},
	{"applicationrevisions.core.oam.dev", "applicationrevision", []string{"apprev"}},
	{"resourcetrackers.core.oam.dev", "resourcetracker", []string{"tracker"}},
	{"policies.core.oam.dev", "policy", nil},

	{"bindings", "binding", nil},
	{"componentstatuses", "componentstatus", []string{"cs"}},
	{"configmaps", "configmap", []string{"cm"}},
	{"endpoints", "endpoint", []string{"ep"}},
	{"events", "event", []string{"ev"}},
	{"limitranges", "limitrange", []string{"limits"}},
	{"namespaces", "namespace", []string{"ns"}},
	{"persistentvolumeclaims", "persistentvolumeclaim", []string{"pvc"}},
	{"persistentvolumes", "persistentvolume", []string{"pv"}},
	{"podtemplates", "podtemplate", nil},
	{"replicationcontrollers", "replicationcontroller", []string{"rc"}},
	{"resourcequotas", "resourcequota", []string{"quota"}},
	{"secrets", "secret", nil},
	{"serviceaccounts", "serviceaccount", []string{"sa"}},
	{"services", "service", []string{"svc"}},
	{"controllerrevisions.apps", "controllerrevision", nil},
	{"daemonsets.apps", "daemonset", []string{"ds"}},
	{"deployments.apps", "deployment", []string{"deploy"}},
	{"replicasets.apps", "replicaset", []string{"rs"}},
	{"statefulsets.apps", "statefulset", []string{"sts"}},
	{"jobs.batch", "job", nil},
	{"cronjobs.batch", "cronjob", []string{"cj"}},
	{"horizontalpodautoscalers.autoscaling", "horizontalpodautoscaler", []string{"hpa"}},
	{"leases.coordination.k8s.io", "lease", nil},
	{"endpointslices.discovery.k8s.io", "endpointslice", nil},
	{"ingresses.networking.k8s.io", "ingress", []string{"ing"}},
	{"ingressclasses.networking.k8s.io", "ingressclass", nil},
	{"networkpolicies.networking.k8s.io", "networkpolicy", []string{"netpol"}},
	{"poddisruptionbudgets.policy", "poddisruptionbudget", []string{"pdb"}},
	{"roles.rbac.authorization.k8s.io", "role", nil},
	{"rolebindings.rbac.authorization.k8s.io", "rolebinding", nil},
	{"clusterroles.rbac.authorization.k8s.io", "clusterrole", nil},
	{"clusterrolebindings.rbac.authorization.k8s.io", "clusterrolebinding", nil},
	{"priorityclasses.scheduling.k8s.io", "priorityclass", []string{"pc"}},
	{"storageclasses.storage.k8s.io", "storageclass", []string{"sc"}},
	{"customresourcedefinitions.apiextensions.k8s.io", "customresourcedefinition", []string{"crd", "crds"}},
}

// knownKind returns the known kind that a word names, and whether there is one.
func knownKind(word string) (Kind, bool) {
	for _, k := range knownKinds {
		if k.Has(word) {
			return k, true
		}
	}
	return Kind{}, false
}
