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
	// LabelInstanceID is a label of workflows that belong to the controller with this instance ID.
	LabelInstanceID = prefix + "controller-instanceid"
	// LabelParallelismLimit is a label of namespaces: the number of their workflows that may run at
	// a time.
	LabelParallelismLimit       = prefix + "parallelism-limit"
	LabelReportOutputsCompleted = prefix + "report-outputs-completed"
	LabelConfigMapType          = prefix + "configmap-type"
	// ConfigMapTypePlugin is the value of this label for executor plugins.
	ConfigMapTypePlugin   = "ExecutorPlugin"
	LabelArchivingStatus  = prefix + "workflow-archiving-status"
	LabelPreviousWorkflow = prefix + "resubmitted-from-workflow"

	// LabelComponent is a label of pods that belong to a workflow but to none of its nodes.
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

	// RepositoriesConfigMap is the ConfigMap of artifact repositories, one in each key, for
	// workflows that name no other ConfigMap. Its annotation AnnotationDefaultRepository is the key
	// for workflows that name none.
	RepositoriesConfigMap       = "artifact-repositories"
	AnnotationDefaultRepository = prefix + "default-artifact-repository"

	// AnnotationFile is the prefix of a pod's annotations whose values become files in the pod.
	AnnotationFile = "lockstep.dev/file."

	// KeyQueue is a label or annotation that names the queue of a workflow, or of one of its pods.
	KeyQueue = "lockstep.dev/queue"
	// KeyGang is a label or annotation in a template's metadata that names a gang. The pods of a
	// node's children that have the same gang and are due at the same time are placed all together
	// or not at all.
	KeyGang = "lockstep.dev/gang"
	// AnnotationLeader is an annotation of workflows that only the leader can run, because they
	// have locks or gangs.
	AnnotationLeader = "lockstep.dev/leader"
	// AnnotationArchived is an annotation of workflows that the archive has. Its value is when the
	// workflow finished, so that one that is run again is archived again.
	AnnotationArchived = "lockstep.dev/archived"
	// AnnotationMembers is an annotation of the pods of container sets: the names of the set's
	// containers, separated by commas. Other containers of the pod were injected.
	AnnotationMembers = "lockstep.dev/members"
	// AnnotationEnding is an annotation of pods that were ended because only injected containers
	// still ran.
	AnnotationEnding = "lockstep.dev/ending"
	// PrefixKillCommand begins the annotations of pods that hold commands to end containers.
	PrefixKillCommand = prefix + "kill-cmd-"
)

// maxPodPrefix is the maximum length of a pod's name before the hash, in bytes.
const maxPodPrefix = 242

// NodeID returns the ID of a workflow's node: the workflow's name, followed by the FNV-1a hash of
// the node's name unless the node is the root.
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

// PodName returns the name of the node's pod, whether or not the pod exists.
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
