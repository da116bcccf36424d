package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CompressionType is how the data of a record is packed.
//
// +kubebuilder:validation:Enum="";gzip;zstd
type CompressionType string

// The ways of packing.
const (
	Uncompressed CompressionType = ""
	Gzip         CompressionType = "gzip"
	Zstd         CompressionType = "zstd"
)

// Compression is a packed form of the fields beside it, which are empty then.
type Compression struct {
	// +optional
	Type CompressionType `json:"type,omitempty"`
	// Data is base64 of the packed JSON.
	// +optional
	Data string `json:"data,omitempty"`
}

// ApplicationRevision is one state that an application had.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
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

// ApplicationRevisionSpec is the application and what it was made with.
type ApplicationRevisionSpec struct {
	// Application is the application as it was, metadata and spec.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Application *runtime.RawExtension `json:"application,omitempty"`
	// DefinitionHashes are the definitions it was rendered with: kind/namespace/name to the hash of its spec.
	// +optional
	DefinitionHashes map[string]string `json:"definitionHashes,omitempty"`
	// +optional
	Compression Compression `json:"compression,omitempty"`
}

// ApplicationRevisionStatus says how the deployment of the revision went.
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

// ResourceTrackerType says what a tracker remembers.
type ResourceTrackerType string

// ResourceTrackerTypeRoot is the one type in use: one tracker for each application.
const ResourceTrackerTypeRoot ResourceTrackerType = "root"

// ResourceTracker remembers the objects that an application manages, so that they can be removed when they leave the
// spec, or when the application goes.
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

// ResourceTrackerSpec is what is remembered.
type ResourceTrackerSpec struct {
	// +optional
	Type ResourceTrackerType `json:"type,omitempty"`
	// ApplicationGeneration is the generation of the application that the resources belong to.
	// +optional
	ApplicationGeneration int64 `json:"applicationGeneration,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=65536
	ManagedResources []ManagedResource `json:"managedResources,omitempty"`
	// Compression is the managed resources, packed.
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
	// Resource is the trait's name of the object, or empty for a workload.
	// +optional
	Resource string `json:"resource,omitempty"`
	// SkipGC leaves the object when it leaves the spec.
	// +optional
	SkipGC bool `json:"skipGC,omitempty"`
	// Deleted says that the object is no longer in the spec and is to be removed.
	// +optional
	Deleted bool `json:"deleted,omitempty"`
	// Data is the object as it was applied, where it is kept.
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
