package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Template is one unit of work. Exactly one of the fields from Container to Plugin is set.
type Template struct {
	Name    string  `json:"name,omitempty"`
	Inputs  Inputs  `json:"inputs,omitempty"`
	Outputs Outputs `json:"outputs,omitempty"`

	Container    *corev1.Container     `json:"container,omitempty"`
	Script       *ScriptTemplate       `json:"script,omitempty"`
	Steps        []ParallelSteps       `json:"steps,omitempty"`
	DAG          *DAGTemplate          `json:"dag,omitempty"`
	Suspend      *SuspendTemplate      `json:"suspend,omitempty"`
	Resource     *ResourceTemplate     `json:"resource,omitempty"`
	ContainerSet *ContainerSetTemplate `json:"containerSet,omitempty"`
	HTTP         *HTTP                 `json:"http,omitempty"`
	Data         *Data                 `json:"data,omitempty"`
	Plugin       *runtime.RawExtension `json:"plugin,omitempty"`

	Daemon                *bool               `json:"daemon,omitempty"`
	RetryStrategy         *RetryStrategy      `json:"retryStrategy,omitempty"`
	ActiveDeadlineSeconds *intstr.IntOrString `json:"activeDeadlineSeconds,omitempty"`
	Timeout               string              `json:"timeout,omitempty"`
	PendingTimeout        string              `json:"pendingTimeout,omitempty"`
	Parallelism           *int64              `json:"parallelism,omitempty"`
	FailFast              *bool               `json:"failFast,omitempty"`
	Synchronization       *Synchronization    `json:"synchronization,omitempty"`
	Memoize               *Memoize            `json:"memoize,omitempty"`
	Metrics               *Metrics            `json:"metrics,omitempty"`

	Metadata        Metadata          `json:"metadata,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	ArchiveLocation *ArtifactLocation `json:"archiveLocation,omitempty"`

	Volumes                      []corev1.Volume              `json:"volumes,omitempty"`
	InitContainers               []UserContainer              `json:"initContainers,omitempty"`
	Sidecars                     []UserContainer              `json:"sidecars,omitempty"`
	NodeSelector                 map[string]string            `json:"nodeSelector,omitempty"`
	Affinity                     *corev1.Affinity             `json:"affinity,omitempty"`
	Tolerations                  []corev1.Toleration          `json:"tolerations,omitempty"`
	SchedulerName                string                       `json:"schedulerName,omitempty"`
	PriorityClassName            string                       `json:"priorityClassName,omitempty"`
	ServiceAccountName           string                       `json:"serviceAccountName,omitempty"`
	AutomountServiceAccountToken *bool                        `json:"automountServiceAccountToken,omitempty"`
	Executor                     *ExecutorConfig              `json:"executor,omitempty"`
	HostAliases                  []corev1.HostAlias           `json:"hostAliases,omitempty"`
	SecurityContext              *corev1.PodSecurityContext   `json:"securityContext,omitempty"`
	PodSpecPatch                 string                       `json:"podSpecPatch,omitempty"`
	PodResources                 *corev1.ResourceRequirements `json:"podResources,omitempty"`
	ResourceClaims               []corev1.PodResourceClaim    `json:"resourceClaims,omitempty"`
}

// Inputs are the parameters and artifacts that a template expects.
type Inputs struct {
	Parameters []Parameter `json:"parameters,omitempty"`
	Artifacts  []Artifact  `json:"artifacts,omitempty"`
}

// Outputs are the parameters and artifacts that a template produces or that a node has produced.
type Outputs struct {
	Parameters []Parameter `json:"parameters,omitempty"`
	Artifacts  []Artifact  `json:"artifacts,omitempty"`
	Result     *string     `json:"result,omitempty"`
	ExitCode   *string     `json:"exitCode,omitempty"`
}

// UserContainer is a sidecar or an init container.
type UserContainer struct {
	corev1.Container   `json:",inline"`
	MirrorVolumeMounts *bool `json:"mirrorVolumeMounts,omitempty"`
}

// ScriptTemplate is a container that runs a script.
type ScriptTemplate struct {
	corev1.Container `json:",inline"`
	Source           string `json:"source"`
}

// ParallelSteps are steps that run in parallel. The JSON is a list of steps, or one step.
//
// +kubebuilder:validation:Schemaless
// +kubebuilder:pruning:PreserveUnknownFields
type ParallelSteps struct {
	Steps []WorkflowStep `json:"-"`
}

// WorkflowStep calls a template as a step.
type WorkflowStep struct {
	Name        string       `json:"name,omitempty"`
	Template    string       `json:"template,omitempty"`
	TemplateRef *TemplateRef `json:"templateRef,omitempty"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Inline       *Template      `json:"inline,omitempty"`
	Arguments    Arguments      `json:"arguments,omitempty"`
	WithItems    []Item         `json:"withItems,omitempty"`
	WithParam    string         `json:"withParam,omitempty"`
	WithSequence *Sequence      `json:"withSequence,omitempty"`
	When         string         `json:"when,omitempty"`
	ContinueOn   *ContinueOn    `json:"continueOn,omitempty"`
	OnExit       string         `json:"onExit,omitempty"`
	Hooks        LifecycleHooks `json:"hooks,omitempty"`
}

// DAGTemplate runs tasks in the order of their dependencies.
type DAGTemplate struct {
	Tasks    []DAGTask `json:"tasks"`
	Target   string    `json:"target,omitempty"`
	FailFast *bool     `json:"failFast,omitempty"`
}

// DAGTask calls a template as a task.
type DAGTask struct {
	Name        string       `json:"name"`
	Template    string       `json:"template,omitempty"`
	TemplateRef *TemplateRef `json:"templateRef,omitempty"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Inline       *Template      `json:"inline,omitempty"`
	Arguments    Arguments      `json:"arguments,omitempty"`
	Dependencies []string       `json:"dependencies,omitempty"`
	Depends      string         `json:"depends,omitempty"`
	WithItems    []Item         `json:"withItems,omitempty"`
	WithParam    string         `json:"withParam,omitempty"`
	WithSequence *Sequence      `json:"withSequence,omitempty"`
	When         string         `json:"when,omitempty"`
	ContinueOn   *ContinueOn    `json:"continueOn,omitempty"`
	OnExit       string         `json:"onExit,omitempty"`
	Hooks        LifecycleHooks `json:"hooks,omitempty"`
}

// TemplateRef names a template in a (Cluster)WorkflowTemplate.
type TemplateRef struct {
	Name         string `json:"name,omitempty"`
	Template     string `json:"template,omitempty"`
	ClusterScope bool   `json:"clusterScope,omitempty"`
}

// Sequence is a loop over Count numbers from Start, or over the numbers from Start to End. Format
// is the printf format of a number.
type Sequence struct {
	Count  *intstr.IntOrString `json:"count,omitempty"`
	Start  *intstr.IntOrString `json:"start,omitempty"`
	End    *intstr.IntOrString `json:"end,omitempty"`
	Format string              `json:"format,omitempty"`
}

// ContinueOn lets a workflow continue although a step or task failed.
type ContinueOn struct {
	Error  bool `json:"error,omitempty"`
	Failed bool `json:"failed,omitempty"`
}

// LifecycleHooks are hooks by name; ExitHook is the exit handler.
type LifecycleHooks map[string]LifecycleHook

// ExitHook is the name of the hook that runs when a node or workflow has ended.
const ExitHook = "exit"

// LifecycleHook runs a template when its expression becomes true.
type LifecycleHook struct {
	Template    string       `json:"template,omitempty"`
	TemplateRef *TemplateRef `json:"templateRef,omitempty"`
	Arguments   Arguments    `json:"arguments,omitempty"`
	Expression  string       `json:"expression,omitempty"`
}

// SuspendTemplate is a pause until a user resumes it, or for a duration (seconds or a Go duration).
type SuspendTemplate struct {
	Duration string `json:"duration,omitempty"`
}

// ResourceTemplate acts on an object of the cluster.
type ResourceTemplate struct {
	Action            string        `json:"action"`
	MergeStrategy     string        `json:"mergeStrategy,omitempty"`
	Manifest          string        `json:"manifest,omitempty"`
	ManifestFrom      *ManifestFrom `json:"manifestFrom,omitempty"`
	SetOwnerReference bool          `json:"setOwnerReference,omitempty"`
	SuccessCondition  string        `json:"successCondition,omitempty"`
	FailureCondition  string        `json:"failureCondition,omitempty"`
	Flags             []string      `json:"flags,omitempty"`
}

// ManifestFrom takes a manifest from an artifact.
type ManifestFrom struct {
	Artifact *Artifact `json:"artifact"`
}

// ContainerSetTemplate runs several containers in one pod, in the order of their dependencies.
type ContainerSetTemplate struct {
	Containers    []ContainerNode            `json:"containers"`
	VolumeMounts  []corev1.VolumeMount       `json:"volumeMounts,omitempty"`
	RetryStrategy *ContainerSetRetryStrategy `json:"retryStrategy,omitempty"`
}

// ContainerNode is a container of a set.
type ContainerNode struct {
	corev1.Container `json:",inline"`
	Dependencies     []string `json:"dependencies,omitempty"`
}

// ContainerSetRetryStrategy restarts containers of a set.
type ContainerSetRetryStrategy struct {
	Duration string              `json:"duration,omitempty"`
	Retries  *intstr.IntOrString `json:"retries"`
}

// HTTP is an HTTP request.
type HTTP struct {
	Method             string          `json:"method,omitempty"`
	URL                string          `json:"url"`
	Headers            []HTTPHeader    `json:"headers,omitempty"`
	TimeoutSeconds     *int64          `json:"timeoutSeconds,omitempty"`
	SuccessCondition   string          `json:"successCondition,omitempty"`
	Body               string          `json:"body,omitempty"`
	BodyFrom           *HTTPBodySource `json:"bodyFrom,omitempty"`
	InsecureSkipVerify bool            `json:"insecureSkipVerify,omitempty"`
}

// HTTPHeader is a header of an HTTP request.
type HTTPHeader struct {
	Name      string            `json:"name"`
	Value     string            `json:"value,omitempty"`
	ValueFrom *HTTPHeaderSource `json:"valueFrom,omitempty"`
}

// HTTPHeaderSource is a key of a Secret with the value of a header.
type HTTPHeaderSource struct {
	SecretKeyRef *corev1.SecretKeySelector `json:"secretKeyRef,omitempty"`
}

// HTTPBodySource is the body of an HTTP request, as bytes.
type HTTPBodySource struct {
	Bytes []byte `json:"bytes,omitempty"`
}

// Data lists and transforms artifacts.
type Data struct {
	Source         DataSource           `json:"source"`
	Transformation []TransformationStep `json:"transformation"`
}

// DataSource is the source of data.
type DataSource struct {
	ArtifactPaths *ArtifactPaths `json:"artifactPaths,omitempty"`
}

// ArtifactPaths lists the paths under an artifact.
type ArtifactPaths struct {
	Artifact `json:",inline"`
}

// TransformationStep is an expression over data.
type TransformationStep struct {
	Expression string `json:"expression"`
}

// Memoize reads and stores a node's outputs in a cache.
type Memoize struct {
	Key    string        `json:"key"`
	Cache  *MemoizeCache `json:"cache"`
	MaxAge string        `json:"maxAge,omitempty"`
}

// MemoizeCache names a cache.
type MemoizeCache struct {
	ConfigMap *CacheConfigMap `json:"configMap"`
}

// CacheConfigMap names the ConfigMap that holds a cache. Memoize names the entry in it, so Key and
// Optional have no effect: clients write them because they are fields of a reference to a key.
type CacheConfigMap struct {
	Name     string `json:"name"`
	Key      string `json:"key,omitempty"`
	Optional *bool  `json:"optional,omitempty"`
}

// Item is one item of a loop: any JSON value.
//
// +kubebuilder:validation:Schemaless
// +kubebuilder:pruning:PreserveUnknownFields
type Item struct {
	apiextensionsv1.JSON `json:",inline"`
}
