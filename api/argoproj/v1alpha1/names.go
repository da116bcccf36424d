package v1alpha1

import (
	"hash/fnv"
	"strconv"
)

// Labels and annotations that clients of the API rely on.
const (
	prefix = "workflows.argoproj.io/"

	LabelWorkflow                = prefix + "workflow"
	LabelPhase                   = prefix + "phase"
	LabelCompleted               = prefix + "completed"
	LabelOnExit                  = prefix + "on-exit"
	LabelCronWorkflow            = prefix + "cron-workflow"
	LabelWorkflowTemplate        = prefix + "workflow-template"
	LabelClusterWorkflowTemplate = prefix + "cluster-workflow-template"
	// LabelInstanceID is on workflows that are meant for another controller.
	LabelInstanceID             = prefix + "controller-instanceid"
	LabelReportOutputsCompleted = prefix + "report-outputs-completed"
	LabelConfigMapType          = prefix + "configmap-type"
	LabelArchivingStatus        = prefix + "workflow-archiving-status"
	LabelPreviousWorkflow       = prefix + "resubmitted-from-workflow"

	// LabelComponent is on pods of a workflow that are none of its nodes'.
	LabelComponent      = prefix + "component"
	ComponentArtifactGC = "artifact-gc"
	// FinalizerArtifactGC keeps a workflow until its artifacts are deleted.
	FinalizerArtifactGC = prefix + "artifact-gc"

	AnnotationNodeID        = prefix + "node-id"
	AnnotationNodeName      = prefix + "node-name"
	AnnotationNodeType      = prefix + "node-type"
	AnnotationPodNameFormat = prefix + "pod-name-format"
	AnnotationScheduledTime = prefix + "scheduled-time"
	AnnotationDisplayName   = prefix + "display-name"

	// RepositoriesConfigMap holds artifact repositories, one in each key, unless a workflow names another ConfigMap.
	// AnnotationDefaultRepository on it names the key of workflows that name none.
	RepositoriesConfigMap       = "artifact-repositories"
	AnnotationDefaultRepository = prefix + "default-artifact-repository"

	// AnnotationFile starts the names of a pod's annotations that become files in it.
	AnnotationFile = "lockstep.dev/file."

	// KeyQueue names the queue of a workflow, or of one of its pods; a label or an annotation.
	KeyQueue = "lockstep.dev/queue"
	// KeyGang, in a template's metadata, makes the pods of that name among the children of a node a gang: those that are
	// due at the same time are placed all together or not at all.
	KeyGang = "lockstep.dev/gang"
	// AnnotationLeader is on workflows that only the manager that places pods can run: they have locks or gangs.
	AnnotationLeader = "lockstep.dev/leader"
)

// maxPodPrefix is the length in bytes of a pod's name before the hash.
const maxPodPrefix = 242

// NodeID returns the id of a workflow's node: the workflow's name for the root, else with the node name's FNV-1a hash.
func NodeID(workflow, node string) string {
	if node == workflow {
		return workflow
	}
	return workflow + "-" + Hash(node)
}

// PodName returns the name of a node's pod.
func PodName(workflow, node, template string) string {
	if node == workflow {
		return workflow
	}
	p := workflow + "-" + template
	if len(p) > maxPodPrefix {
		p = p[:maxPodPrefix]
	}
	return p + "-" + Hash(node)
}

// PodName returns the name of the pod of a node of a workflow, whether or not it has one.
func (n *NodeStatus) PodName(workflow string) string {
	template := n.TemplateName
	if n.TemplateRef != nil {
		template = n.TemplateRef.Template
	}
	return PodName(workflow, n.Name, template)
}

// Hash returns the FNV-1a hash of a name, in decimal digits.
func Hash(s string) string {
	h := fnv.New32a()
	h.Write([]byte(s))
	return strconv.FormatUint(uint64(h.Sum32()), 10)
}
