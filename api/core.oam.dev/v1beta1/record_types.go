package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CompressionType is the algorithm by which the data of a revision or resource tracker is
// compressed.
//
// +kubebuilder:validation:Enum="";gzip;zstd
type CompressionType string

// The types of compression.
const (
	Uncompressed CompressionType = ""
	Gzip         CompressionType = "gzip"
	Zstd         CompressionType = "zstd"
)

// Compression is the compressed form of other fields of the same spec, which are then empty.
type Compression struct {
	// +optional
	Type CompressionType `json:"type,omitempty"`
	// Data is the compressed JSON, encoded in base64.
	// +optional
	Data string `json:"data,omitempty"`
}

// ApplicationRevision is one revision of an application.
//
// The status is no subresource, so that a revision is created with it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=applicationrevisions,shortName=apprev,categories=oam
// +kubebuilder:printcolumn:name="SUCCEEDED",type=string,JSONPath=`.status.succeeded`
// +kubebuilder:printcolumn:name="PUBLISH_VERSION",type=string,JSONPath=`.metadata.annotations['app\.oam\.dev/publishVersion']`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ApplicationRevision struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec ApplicationRevisionSpec `json:"spec,omitempty"`
	// +optional
	Status ApplicationRevisionStatus `json:"status,omitempty"`
}

// ApplicationRevisionSpec is the application as it was, and the definitions that it used.
type ApplicationRevisionSpec struct {
	// Application is the application's metadata and spec.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Application *runtime.RawExtension `json:"application,omitempty"`
	// DefinitionHashes are the definitions with which the application was rendered. It maps
	// kind/namespace/name to the hash of the definition's spec.
	// +optional
	DefinitionHashes map[string]string `json:"definitionHashes,omitempty"`
	// Compression is the compressed form of the definitions that the application names: a JSON object
	// of componentDefinitions, traitDefinitions, policyDefinitions and workflowStepDefinitions, each
	// of them an object of definitions by name. A client that writes revisions back may put the
	// application there, too.
	// +optional
	Compression Compression `json:"compression,omitempty"`
}

// ApplicationRevisionStatus is the result of the deployment of the revision.
type ApplicationRevisionStatus struct {
	Succeeded bool `json:"succeeded"`
	// +optional
	Workflow *WorkflowStatus `json:"workflow,omitempty"`
}

// ApplicationRevisionList is a list of application revisions.
//
// +kubebuilder:object:root=true
type ApplicationRevisionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ApplicationRevision `json:"items"`
}

// ResourceTrackerType is the type of a resource tracker.
type ResourceTrackerType string

// ResourceTrackerTypeVersioned is the type of the trackers that the manager writes, one for each
// application. Clients regard such a tracker as current if its applicationGeneration equals the
// generation of the application, or if both have the same publishVersion.
const ResourceTrackerTypeVersioned ResourceTrackerType = "versioned"

// ResourceTracker records the objects that an application manages, so that they can be deleted when
// they are no longer in the spec, or when the application is deleted.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=resourcetrackers,shortName=rt,scope=Cluster,categories=oam
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="APP",type=string,JSONPath=`.metadata.labels['app\.oam\.dev/name']`
// +kubebuilder:printcolumn:name="APP-NS",type=string,JSONPath=`.metadata.labels['app\.oam\.dev/namespace']`
// +kubebuilder:printcolumn:name="APP-GEN",type=integer,JSONPath=`.spec.applicationGeneration`
type ResourceTracker struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec ResourceTrackerSpec `json:"spec,omitempty"`
}

// ResourceTrackerSpec is the objects that an application manages.
type ResourceTrackerSpec struct {
	// +optional
	Type ResourceTrackerType `json:"type,omitempty"`
	// ApplicationGeneration is the generation of the application that the resources belong to.
	// +optional
	ApplicationGeneration int64 `json:"applicationGeneration,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=65536
	ManagedResources []ManagedResource `json:"managedResources,omitempty"`
	// Compression is the compressed form of the managed resources, if it has a type. Without a type,
	// its data is the manager's own record of the application: see the package records.
	// +optional
	Compression Compression `json:"compression,omitempty"`
}

// ManagedResource is one object that an application manages.
type ManagedResource struct {
	ClusterObjectReference `json:",inline"`
	// +optional
	Component string `json:"component,omitempty"`
	// +optional
	Trait string `json:"trait,omitempty"`
	// Resource is the trait's name for the object; empty for a workload.
	// +optional
	Resource string `json:"resource,omitempty"`
	// SkipGC means that the object is kept when it is no longer in the spec.
	// +optional
	SkipGC bool `json:"skipGC,omitempty"`
	// Deleted means that the object is no longer in the spec and is to be deleted.
	// +optional
	Deleted bool `json:"deleted,omitempty"`
	// Data is the object as it was applied, if it is kept.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Data *runtime.RawExtension `json:"raw,omitempty"`
}

// ResourceTrackerList is a list of resource trackers.
//
// +kubebuilder:object:root=true
type ResourceTrackerList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceTracker `json:"items"`
}
