package v1alpha1

// Labels and annotations that the controller of Jobs puts on pods. They are the same as Volcano's,
// because users select by them. TaskIndexKey, JobNameKey, TaskSpecKey and QueueNameKey are both
// labels and annotations.
const (
	// TaskIndexKey is the pod's index in its task.
	TaskIndexKey = "volcano.sh/task-index"
	// TaskSpecKey is the task's name.
	TaskSpecKey = "volcano.sh/task-spec"
	// JobNameKey is the Job's name.
	JobNameKey = "volcano.sh/job-name"
	// JobNamespaceKey is the Job's namespace (label only).
	JobNamespaceKey = "volcano.sh/job-namespace"
	// QueueNameKey is the Job's queue.
	QueueNameKey = "volcano.sh/queue-name"
	// PartitionIDKey is the partition of a task with a partitionPolicy (label only).
	PartitionIDKey = "volcano.sh/partition-id"
	// JobVersionKey is the Job's status.version when the pod was created (annotation only).
	JobVersionKey = "volcano.sh/job-version"
	// PodTemplateKey identifies the template from which the pod was made (annotation only).
	PodTemplateKey = "volcano.sh/template-uid"
	// JobRetryCountKey is the Job's status.retryCount when the pod was created (annotation only).
	JobRetryCountKey = "volcano.sh/job-retry-count"
	// NumaTopologyPolicyKey is the task's topologyPolicy (annotation only).
	NumaTopologyPolicyKey = "volcano.sh/numa-topology-policy"
)

// CronJobScheduledTimestampKey is the annotation of a CronJob's Jobs with the time that the Job was
// scheduled for.
const CronJobScheduledTimestampKey = "volcano.sh/cronjob-scheduled-timestamp"

// Lockstep's own annotations.
const (
	// SimDurationAnnotation on a simulated pod is a Go duration: how long the pod runs. Without it
	// the pod runs until it is deleted.
	SimDurationAnnotation = "lockstep.dev/sim-duration"
	// SimExitCodeAnnotation on a simulated pod is the exit code with which it ends; 0 if absent.
	SimExitCodeAnnotation = "lockstep.dev/sim-exit-code"
	// CreatorAnnotation marks an object that Lockstep created and that has no controller owner, so
	// that a create that is repeated after a lost response recognises the object.
	CreatorAnnotation = "lockstep.dev/creator"
)

// Environment variables that the env plugin sets: the pod's index in its task.
const (
	TaskIndexEnv       = "VC_TASK_INDEX"
	LegacyTaskIndexEnv = "VK_TASK_INDEX"
)

// The names of the job plugins.
const (
	EnvPlugin        = "env"
	SvcPlugin        = "svc"
	SSHPlugin        = "ssh"
	TensorFlowPlugin = "tensorflow"
	PyTorchPlugin    = "pytorch"
	MPIPlugin        = "mpi"
	RayPlugin        = "ray"
	HCCLRankPlugin   = "hcclrank"
)
