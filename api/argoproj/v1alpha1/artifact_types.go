package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Artifact is a file or directory: an argument, an input or an output.
type Artifact struct {
	Name           string           `json:"name"`
	Path           string           `json:"path,omitempty"`
	Mode           *int32           `json:"mode,omitempty"`
	From           string           `json:"from,omitempty"`
	FromExpression string           `json:"fromExpression,omitempty"`
	SubPath        string           `json:"subPath,omitempty"`
	Optional       bool             `json:"optional,omitempty"`
	RecurseMode    bool             `json:"recurseMode,omitempty"`
	GlobalName     string           `json:"globalName,omitempty"`
	Archive        *ArchiveStrategy `json:"archive,omitempty"`
	ArchiveLogs    *bool            `json:"archiveLogs,omitempty"`
	ArtifactGC     *ArtifactGC      `json:"artifactGC,omitempty"`
	Deleted        bool             `json:"deleted,omitempty"`

	ArtifactLocation `json:",inline"`
}

// ArtifactLocation is the place where an artifact is stored. At most one of the pointers to places
// is set.
type ArtifactLocation struct {
	ArchiveLogs *bool                `json:"archiveLogs,omitempty"`
	S3          *S3Artifact          `json:"s3,omitempty"`
	Git         *GitArtifact         `json:"git,omitempty"`
	HTTP        *HTTPArtifact        `json:"http,omitempty"`
	Raw         *RawArtifact         `json:"raw,omitempty"`
	GCS         *GCSArtifact         `json:"gcs,omitempty"`
	Azure       *AzureArtifact       `json:"azure,omitempty"`
	Artifactory *ArtifactoryArtifact `json:"artifactory,omitempty"`
	HDFS        *HDFSArtifact        `json:"hdfs,omitempty"`
	OSS         *OSSArtifact         `json:"oss,omitempty"`
	Plugin      *PluginArtifact      `json:"plugin,omitempty"`
	Volume      *VolumeArtifact      `json:"volume,omitempty"`
}

// ArchiveStrategy is the way in which a file or directory is packed.
type ArchiveStrategy struct {
	Tar  *TarStrategy  `json:"tar,omitempty"`
	None *NoneStrategy `json:"none,omitempty"`
	Zip  *ZipStrategy  `json:"zip,omitempty"`
}

// TarStrategy packs into a compressed tar file.
type TarStrategy struct {
	CompressionLevel *int32 `json:"compressionLevel,omitempty"`
}

// NoneStrategy keeps files as they are.
type NoneStrategy struct{}

// ZipStrategy packs into a zip file.
type ZipStrategy struct{}

// The strategies of ArtifactGC.
const (
	ArtifactGCNever        = "Never"
	ArtifactGCOnCompletion = "OnWorkflowCompletion"
	ArtifactGCOnDeletion   = "OnWorkflowDeletion"
)

// ArtifactGC says when artifacts are deleted.
type ArtifactGC struct {
	Strategy           string    `json:"strategy,omitempty"`
	PodMetadata        *Metadata `json:"podMetadata,omitempty"`
	ServiceAccountName string    `json:"serviceAccountName,omitempty"`
}

// WorkflowLevelArtifactGC is the ArtifactGC of artifacts that have none of their own, with settings
// of the workflow.
type WorkflowLevelArtifactGC struct {
	ArtifactGC            `json:",inline"`
	ForceFinalizerRemoval bool   `json:"forceFinalizerRemoval,omitempty"`
	PodSpecPatch          string `json:"podSpecPatch,omitempty"`
}

// S3Artifact is an object in an S3-compatible store.
type S3Artifact struct {
	Endpoint           string                    `json:"endpoint,omitempty"`
	Bucket             string                    `json:"bucket,omitempty"`
	Region             string                    `json:"region,omitempty"`
	Insecure           *bool                     `json:"insecure,omitempty"`
	AccessKeySecret    *corev1.SecretKeySelector `json:"accessKeySecret,omitempty"`
	SecretKeySecret    *corev1.SecretKeySelector `json:"secretKeySecret,omitempty"`
	SessionTokenSecret *corev1.SecretKeySelector `json:"sessionTokenSecret,omitempty"`
	RoleARN            string                    `json:"roleARN,omitempty"`
	UseSDKCreds        bool                      `json:"useSDKCreds,omitempty"`
	CASecret           *corev1.SecretKeySelector `json:"caSecret,omitempty"`
	Key                string                    `json:"key,omitempty"`
}

// GitArtifact is a checkout of a Git repository.
type GitArtifact struct {
	Repo                  string                    `json:"repo"`
	Revision              string                    `json:"revision,omitempty"`
	Branch                string                    `json:"branch,omitempty"`
	Depth                 *uint64                   `json:"depth,omitempty"`
	Fetch                 []string                  `json:"fetch,omitempty"`
	UsernameSecret        *corev1.SecretKeySelector `json:"usernameSecret,omitempty"`
	PasswordSecret        *corev1.SecretKeySelector `json:"passwordSecret,omitempty"`
	SSHPrivateKeySecret   *corev1.SecretKeySelector `json:"sshPrivateKeySecret,omitempty"`
	InsecureIgnoreHostKey bool                      `json:"insecureIgnoreHostKey,omitempty"`
	InsecureSkipTLS       bool                      `json:"insecureSkipTLS,omitempty"`
	DisableSubmodules     bool                      `json:"disableSubmodules,omitempty"`
	SingleBranch          bool                      `json:"singleBranch,omitempty"`
}

// HTTPArtifact is the content of a URL.
type HTTPArtifact struct {
	URL     string       `json:"url"`
	Headers []HTTPHeader `json:"headers,omitempty"`
}

// RawArtifact is a text.
type RawArtifact struct {
	Data string `json:"data"`
}

// GCSArtifact is an object in Google Cloud Storage.
type GCSArtifact struct {
	Bucket                  string                    `json:"bucket,omitempty"`
	ServiceAccountKeySecret *corev1.SecretKeySelector `json:"serviceAccountKeySecret,omitempty"`
	Key                     string                    `json:"key"`
}

// AzureArtifact is a blob in Azure Blob Storage.
type AzureArtifact struct {
	Endpoint         string                    `json:"endpoint,omitempty"`
	Container        string                    `json:"container,omitempty"`
	AccountKeySecret *corev1.SecretKeySelector `json:"accountKeySecret,omitempty"`
	UseSDKCreds      bool                      `json:"useSDKCreds,omitempty"`
	Blob             string                    `json:"blob"`
}

// ArtifactoryArtifact is a file in Artifactory.
type ArtifactoryArtifact struct {
	URL            string                    `json:"url"`
	UsernameSecret *corev1.SecretKeySelector `json:"usernameSecret,omitempty"`
	PasswordSecret *corev1.SecretKeySelector `json:"passwordSecret,omitempty"`
}

// HDFSArtifact is a file in HDFS.
type HDFSArtifact struct {
	Addresses []string `json:"addresses,omitempty"`
	HDFSUser  string   `json:"hdfsUser,omitempty"`
	Path      string   `json:"path"`
	Force     bool     `json:"force,omitempty"`
}

// OSSArtifact is an object in Alibaba Cloud's Object Storage Service.
type OSSArtifact struct {
	Endpoint        string                    `json:"endpoint,omitempty"`
	Bucket          string                    `json:"bucket,omitempty"`
	AccessKeySecret *corev1.SecretKeySelector `json:"accessKeySecret,omitempty"`
	SecretKeySecret *corev1.SecretKeySelector `json:"secretKeySecret,omitempty"`
	Key             string                    `json:"key"`
}

// VolumeArtifact is a file or directory on a volume that pods share: a claim, or a directory of the
// nodes. It exists only in Lockstep.
type VolumeArtifact struct {
	ClaimName string `json:"claimName,omitempty"`
	HostPath  string `json:"hostPath,omitempty"`
	Key       string `json:"key,omitempty"`
}

// PluginArtifact is an artifact that a plugin stores.
type PluginArtifact struct {
	Name          string `json:"name"`
	Configuration string `json:"configuration,omitempty"`
	Key           string `json:"key,omitempty"`
}
