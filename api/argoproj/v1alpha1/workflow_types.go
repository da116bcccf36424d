package v1alpha1

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Workflow is one run of a set of templates, beginning with the entrypoint.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workflows,shortName=wf
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.status.startedAt`
// +kubebuilder:printcolumn:name="Progress",type=string,priority=1,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
type Workflow struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              WorkflowSpec   `json:"spec"`
	Status            WorkflowStatus `json:"status,omitempty"`
}

// EffectiveSpec returns the spec that the workflow runs: the stored spec of its WorkflowTemplate if
// it has one, else its own.
func (w *Workflow) EffectiveSpec() *WorkflowSpec {
	return cmp.Or(w.Status.StoredWorkflowTemplateSpec, &w.Spec)
}

// Guarded reports whether the workflow has the finalizer that keeps it until its artifacts are
// deleted.
func (w *Workflow) Guarded() bool { return slices.Contains(w.Finalizers, FinalizerArtifactGC) }

// WorkflowList is a list of Workflows.
//
// +kubebuilder:object:root=true
type WorkflowList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Workflow `json:"items"`
}

// WorkflowTemplate is a library of templates for the workflows of its namespace, or a spec that
// workflows refer to.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workflowtemplates,shortName=wftmpl
// +kubebuilder:printcolumn:name="Entrypoint",type=string,JSONPath=`.spec.entrypoint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkflowTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              WorkflowSpec `json:"spec"`
}

// WorkflowTemplateList is a list of WorkflowTemplates.
//
// +kubebuilder:object:root=true
type WorkflowTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []WorkflowTemplate `json:"items"`
}

// ClusterWorkflowTemplate is a WorkflowTemplate for all namespaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusterworkflowtemplates,scope=Cluster,shortName=clusterwftmpl;cwft
// +kubebuilder:printcolumn:name="Entrypoint",type=string,JSONPath=`.spec.entrypoint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterWorkflowTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              WorkflowSpec `json:"spec"`
}

// ClusterWorkflowTemplateList is a list of ClusterWorkflowTemplates.
//
// +kubebuilder:object:root=true
type ClusterWorkflowTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []ClusterWorkflowTemplate `json:"items"`
}

// WorkflowSpec specifies what a workflow runs and how.
type WorkflowSpec struct {
	Templates  []Template `json:"templates,omitempty"`
	Entrypoint string     `json:"entrypoint,omitempty"`
	Arguments  Arguments  `json:"arguments,omitempty"`

	// WorkflowTemplateRef names the WorkflowTemplate that has the spec. Fields that are set in this
	// spec take precedence.
	WorkflowTemplateRef *WorkflowTemplateRef `json:"workflowTemplateRef,omitempty"`
	TemplateDefaults    *Template            `json:"templateDefaults,omitempty"`

	OnExit        string         `json:"onExit,omitempty"`
	Hooks         LifecycleHooks `json:"hooks,omitempty"`
	RetryStrategy *RetryStrategy `json:"retryStrategy,omitempty"`

	// Parallelism is the maximum number of pods that run at the same time.
	Parallelism           *int64           `json:"parallelism,omitempty"`
	ActiveDeadlineSeconds *int64           `json:"activeDeadlineSeconds,omitempty"`
	Priority              *int32           `json:"priority,omitempty"`
	Suspend               *bool            `json:"suspend,omitempty"`
	Shutdown              ShutdownStrategy `json:"shutdown,omitempty"`
	Synchronization       *Synchronization `json:"synchronization,omitempty"`

	TTLStrategy          *TTLStrategy                      `json:"ttlStrategy,omitempty"`
	PodGC                *PodGC                            `json:"podGC,omitempty"`
	PodDisruptionBudget  *policyv1.PodDisruptionBudgetSpec `json:"podDisruptionBudget,omitempty"`
	PodMetadata          *Metadata                         `json:"podMetadata,omitempty"`
	PodSpecPatch         string                            `json:"podSpecPatch,omitempty"`
	PodResources         *corev1.ResourceRequirements      `json:"podResources,omitempty"`
	ResourceClaims       []corev1.PodResourceClaim         `json:"resourceClaims,omitempty"`
	WorkflowMetadata     *WorkflowMetadata                 `json:"workflowMetadata,omitempty"`
	Metrics              *Metrics                          `json:"metrics,omitempty"`
	Executor             *ExecutorConfig                   `json:"executor,omitempty"`
	ExecutorPlugins      []ExecutorPlugin                  `json:"executorPlugins,omitempty"`
	VolumeClaimTemplates []corev1.PersistentVolumeClaim    `json:"volumeClaimTemplates,omitempty"`
	VolumeClaimGC        *VolumeClaimGC                    `json:"volumeClaimGC,omitempty"`

	ArchiveLogs           *bool                    `json:"archiveLogs,omitempty"`
	ArtifactRepositoryRef *ArtifactRepositoryRef   `json:"artifactRepositoryRef,omitempty"`
	ArtifactGC            *WorkflowLevelArtifactGC `json:"artifactGC,omitempty"`

	ServiceAccountName           string                        `json:"serviceAccountName,omitempty"`
	AutomountServiceAccountToken *bool                         `json:"automountServiceAccountToken,omitempty"`
	Volumes                      []corev1.Volume               `json:"volumes,omitempty"`
	NodeSelector                 map[string]string             `json:"nodeSelector,omitempty"`
	Affinity                     *corev1.Affinity              `json:"affinity,omitempty"`
	Tolerations                  []corev1.Toleration           `json:"tolerations,omitempty"`
	SchedulerName                string                        `json:"schedulerName,omitempty"`
	ImagePullSecrets             []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	SecurityContext              *corev1.PodSecurityContext    `json:"securityContext,omitempty"`
	HostNetwork                  *bool                         `json:"hostNetwork,omitempty"`
	DNSPolicy                    *corev1.DNSPolicy             `json:"dnsPolicy,omitempty"`
	DNSConfig                    *corev1.PodDNSConfig          `json:"dnsConfig,omitempty"`
	HostAliases                  []corev1.HostAlias            `json:"hostAliases,omitempty"`
	PodPriorityClassName         string                        `json:"podPriorityClassName,omitempty"`
}

// ShutdownStrategy ends a workflow early: Stop still runs exit handlers, Terminate does not.
//
// +kubebuilder:validation:Enum="";Stop;Terminate
type ShutdownStrategy string

const (
	ShutdownNone      ShutdownStrategy = ""
	ShutdownStop      ShutdownStrategy = "Stop"
	ShutdownTerminate ShutdownStrategy = "Terminate"
)

// Arguments are the values that a caller passes to a template, or a user to a workflow.
type Arguments struct {
	Parameters []Parameter `json:"parameters,omitempty"`
	Artifacts  []Artifact  `json:"artifacts,omitempty"`
}

// Parameter is a named string: an argument, an input or an output.
type Parameter struct {
	Name string `json:"name"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Value *AnyString `json:"value,omitempty"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Default    *AnyString  `json:"default,omitempty"`
	ValueFrom  *ValueFrom  `json:"valueFrom,omitempty"`
	GlobalName string      `json:"globalName,omitempty"`
	Enum       []AnyString `json:"enum,omitempty"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Description *AnyString `json:"description,omitempty"`
}

// ValueFrom is the source of a parameter's value.
type ValueFrom struct {
	Path            string                       `json:"path,omitempty"`
	JSONPath        string                       `json:"jsonPath,omitempty"`
	JQFilter        string                       `json:"jqFilter,omitempty"`
	Event           string                       `json:"event,omitempty"`
	Parameter       string                       `json:"parameter,omitempty"`
	Supplied        *SuppliedValueFrom           `json:"supplied,omitempty"`
	ConfigMapKeyRef *corev1.ConfigMapKeySelector `json:"configMapKeyRef,omitempty"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Default    *AnyString `json:"default,omitempty"`
	Expression string     `json:"expression,omitempty"`
}

// SuppliedValueFrom marks a value that a user supplies while the workflow is suspended.
type SuppliedValueFrom struct{}

// WorkflowTemplateRef names a (Cluster)WorkflowTemplate.
type WorkflowTemplateRef struct {
	Name         string `json:"name"`
	ClusterScope bool   `json:"clusterScope,omitempty"`
}

// TTLStrategy deletes finished workflows after a time in seconds.
type TTLStrategy struct {
	SecondsAfterCompletion *int32 `json:"secondsAfterCompletion,omitempty"`
	SecondsAfterSuccess    *int32 `json:"secondsAfterSuccess,omitempty"`
	SecondsAfterFailure    *int32 `json:"secondsAfterFailure,omitempty"`
}

// PodGC deletes pods that have ended.
type PodGC struct {
	// Strategy says when pods are deleted. If it is empty, pods are not deleted.
	//
	// +kubebuilder:validation:Enum="";OnPodCompletion;OnPodSuccess;OnWorkflowCompletion;OnWorkflowSuccess
	Strategy string `json:"strategy,omitempty"`
	// LabelSelector selects the pods to delete. If it is not set, all pods are deleted.
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// DeleteDelayDuration is the time from then until the deletion: seconds, or a Go duration.
	DeleteDelayDuration string `json:"deleteDelayDuration,omitempty"`
}

// The strategies of PodGC.
const (
	PodGCOnPodCompletion      = "OnPodCompletion"
	PodGCOnPodSuccess         = "OnPodSuccess"
	PodGCOnWorkflowCompletion = "OnWorkflowCompletion"
	PodGCOnWorkflowSuccess    = "OnWorkflowSuccess"
)

// VolumeClaimGC says when the claims of volumeClaimTemplates are deleted.
type VolumeClaimGC struct {
	// Strategy says when; the default is OnWorkflowSuccess.
	//
	// +kubebuilder:validation:Enum="";OnWorkflowCompletion;OnWorkflowSuccess
	Strategy string `json:"strategy,omitempty"`
}

// The strategies of VolumeClaimGC.
const (
	VolumeClaimGCOnCompletion = "OnWorkflowCompletion"
	VolumeClaimGCOnSuccess    = "OnWorkflowSuccess"
)

// Metadata is annotations and labels that are added to pods.
type Metadata struct {
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// WorkflowMetadata is labels and annotations that are added to the workflow itself.
type WorkflowMetadata struct {
	Labels      map[string]string         `json:"labels,omitempty"`
	Annotations map[string]string         `json:"annotations,omitempty"`
	LabelsFrom  map[string]LabelValueFrom `json:"labelsFrom,omitempty"`
}

// LabelValueFrom computes the value of a label by an expression.
type LabelValueFrom struct {
	Expression string `json:"expression"`
}

// ExecutorConfig configures the executor in pods.
type ExecutorConfig struct {
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
}

// ExecutorPlugin names an executor plugin.
type ExecutorPlugin struct {
	Name string `json:"name,omitempty"`
}

// ArtifactRepositoryRef chooses an artifact repository.
type ArtifactRepositoryRef struct {
	ConfigMap string `json:"configMap,omitempty"`
	Key       string `json:"key,omitempty"`
}

// Synchronization lists the locks that a workflow or template needs.
type Synchronization struct {
	Semaphores []SemaphoreRef `json:"semaphores,omitempty"`
	Mutexes    []Mutex        `json:"mutexes,omitempty"`
	// Semaphore and Mutex are the only lock in manifests of earlier versions. Use AllSemaphores and
	// AllMutexes to read them.
	Semaphore *SemaphoreRef `json:"semaphore,omitempty"`
	Mutex     *Mutex        `json:"mutex,omitempty"`
}

// AllSemaphores returns the semaphores of both Semaphore and Semaphores.
func (s *Synchronization) AllSemaphores() []SemaphoreRef {
	if s.Semaphore == nil {
		return s.Semaphores
	}
	return append([]SemaphoreRef{*s.Semaphore}, s.Semaphores...)
}

// AllMutexes returns the mutexes of both Mutex and Mutexes.
func (s *Synchronization) AllMutexes() []Mutex {
	if s.Mutex == nil {
		return s.Mutexes
	}
	return append([]Mutex{*s.Mutex}, s.Mutexes...)
}

// SemaphoreRef names a lock for several holders. A key of a ConfigMap, or a database, has their
// maximum number.
type SemaphoreRef struct {
	ConfigMapKeyRef *corev1.ConfigMapKeySelector `json:"configMapKeyRef,omitempty"`
	Namespace       string                       `json:"namespace,omitempty"`
	Database        *SyncDatabaseRef             `json:"database,omitempty"`
}

// SyncDatabaseRef names a lock in a database.
type SyncDatabaseRef struct {
	Key string `json:"key"`
}

// Mutex is a lock for one holder.
type Mutex struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Database  bool   `json:"database,omitempty"`
}

// Metrics are metrics that a workflow or template emits.
type Metrics struct {
	Prometheus []*Prometheus `json:"prometheus"`
}

// Prometheus is one metric.
type Prometheus struct {
	Name      string         `json:"name"`
	Labels    []*MetricLabel `json:"labels,omitempty"`
	Help      string         `json:"help"`
	When      string         `json:"when,omitempty"`
	Gauge     *Gauge         `json:"gauge,omitempty"`
	Histogram *Histogram     `json:"histogram,omitempty"`
	Counter   *Counter       `json:"counter,omitempty"`
}

// MetricLabel is a label of a metric.
type MetricLabel struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Gauge is a value that may increase and decrease.
type Gauge struct {
	Value     string `json:"value"`
	Realtime  *bool  `json:"realtime,omitempty"`
	Operation string `json:"operation,omitempty"`
}

// Histogram counts values by bucket.
type Histogram struct {
	Value   string      `json:"value"`
	Buckets []AnyString `json:"buckets"`
}

// Counter is a value that only increases.
type Counter struct {
	Value string `json:"value"`
}

// Backoff delays retry n by Duration × Factor^n, but at most by Cap. There are no retries after
// MaxDuration.
type Backoff struct {
	Duration    string              `json:"duration,omitempty"`
	Factor      *intstr.IntOrString `json:"factor,omitempty"`
	Cap         string              `json:"cap,omitempty"`
	MaxDuration string              `json:"maxDuration,omitempty"`
}

// RetryPolicy says which failures are retried.
//
// +kubebuilder:validation:Enum="";Always;OnFailure;OnError;OnTransientError
type RetryPolicy string

const (
	RetryAlways           RetryPolicy = "Always"
	RetryOnFailure        RetryPolicy = "OnFailure"
	RetryOnError          RetryPolicy = "OnError"
	RetryOnTransientError RetryPolicy = "OnTransientError"
)

// RetryStrategy says how often and when a template that failed is run again.
type RetryStrategy struct {
	Limit       *intstr.IntOrString `json:"limit,omitempty"`
	RetryPolicy RetryPolicy         `json:"retryPolicy,omitempty"`
	Backoff     *Backoff            `json:"backoff,omitempty"`
	Affinity    *RetryAffinity      `json:"affinity,omitempty"`
	Expression  string              `json:"expression,omitempty"`
}

// RetryAffinity keeps retries away from the machines on which attempts failed.
type RetryAffinity struct {
	NodeAntiAffinity *RetryNodeAntiAffinity `json:"nodeAntiAffinity,omitempty"`
}

// RetryNodeAntiAffinity excludes the machines of failed attempts.
type RetryNodeAntiAffinity struct{}
