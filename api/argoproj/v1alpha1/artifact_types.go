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

// ArtifactGC says when artifacts are deleted, and what the pod has that deletes them.
type ArtifactGC struct {
	Strategy           string               `json:"strategy,omitempty"`
	PodMetadata        *Metadata            `json:"podMetadata,omitempty"`
	ServiceAccountName string               `json:"serviceAccountName,omitempty"`
	Env                []corev1.EnvVar      `json:"env,omitempty"`
	Volumes            []corev1.Volume      `json:"volumes,omitempty"`
	VolumeMounts       []corev1.VolumeMount `json:"volumeMounts,omitempty"`
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

	// AddressingStyle says where requests name the bucket: in the path or in the host. If it is
	// empty, the endpoint decides.
	AddressingStyle string `json:"addressingStyle,omitempty"`
	// CreateBucketIfNotPresent creates the bucket of an output artifact if it does not exist.
	CreateBucketIfNotPresent *CreateS3BucketOptions `json:"createBucketIfNotPresent,omitempty"`
	EncryptionOptions        *S3EncryptionOptions   `json:"encryptionOptions,omitempty"`
}

// The addressing styles of S3.
const (
	S3StylePath          = "path"
	S3StyleVirtualHosted = "virtual-hosted"
)

// CreateS3BucketOptions are settings of a bucket that is created.
type CreateS3BucketOptions struct {
	ObjectLocking bool `json:"objectLocking,omitempty"`
}

// S3EncryptionOptions say how the store encrypts objects: with a key of the KMS, with a key that
// each request brings, or with a key of its own.
type S3EncryptionOptions struct {
	EnableEncryption bool   `json:"enableEncryption,omitempty"`
	KmsKeyID         string `json:"kmsKeyId,omitempty"`
	// KmsEncryptionContext is a JSON object of strings.
	KmsEncryptionContext        string                    `json:"kmsEncryptionContext,omitempty"`
	ServerSideCustomerKeySecret *corev1.SecretKeySelector `json:"serverSideCustomerKeySecret,omitempty"`
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
	Auth    *HTTPAuth    `json:"auth,omitempty"`
}

// HTTPAuth says how a client proves who it is.
type HTTPAuth struct {
	BasicAuth  BasicAuth      `json:"basicAuth,omitempty"`
	ClientCert ClientCertAuth `json:"clientCert,omitempty"`
	OAuth2     OAuth2Auth     `json:"oauth2,omitempty"`
}

// BasicAuth is a user name and a password.
type BasicAuth struct {
	UsernameSecret *corev1.SecretKeySelector `json:"usernameSecret,omitempty"`
	PasswordSecret *corev1.SecretKeySelector `json:"passwordSecret,omitempty"`
}

// ClientCertAuth is a client's certificate with its key, in PEM.
type ClientCertAuth struct {
	ClientCertSecret *corev1.SecretKeySelector `json:"clientCertSecret,omitempty"`
	ClientKeySecret  *corev1.SecretKeySelector `json:"clientKeySecret,omitempty"`
}

// OAuth2Auth gets a token by the client credentials grant.
type OAuth2Auth struct {
	ClientIDSecret     *corev1.SecretKeySelector `json:"clientIDSecret,omitempty"`
	ClientSecretSecret *corev1.SecretKeySelector `json:"clientSecretSecret,omitempty"`
	TokenURLSecret     *corev1.SecretKeySelector `json:"tokenURLSecret,omitempty"`
	Scopes             []string                  `json:"scopes,omitempty"`
	EndpointParams     []OAuth2EndpointParam     `json:"endpointParams,omitempty"`
}

// OAuth2EndpointParam is a further parameter of the request for a token.
type OAuth2EndpointParam struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
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
	Addresses               []string                     `json:"addresses,omitempty"`
	HDFSUser                string                       `json:"hdfsUser,omitempty"`
	Path                    string                       `json:"path"`
	Force                   bool                         `json:"force,omitempty"`
	DataTransferProtection  string                       `json:"dataTransferProtection,omitempty"`
	KrbCCacheSecret         *corev1.SecretKeySelector    `json:"krbCCacheSecret,omitempty"`
	KrbConfigConfigMap      *corev1.ConfigMapKeySelector `json:"krbConfigConfigMap,omitempty"`
	KrbKeytabSecret         *corev1.SecretKeySelector    `json:"krbKeytabSecret,omitempty"`
	KrbRealm                string                       `json:"krbRealm,omitempty"`
	KrbServicePrincipalName string                       `json:"krbServicePrincipalName,omitempty"`
	KrbUsername             string                       `json:"krbUsername,omitempty"`
}

// OSSArtifact is an object in Alibaba Cloud's Object Storage Service.
type OSSArtifact struct {
	Endpoint        string                    `json:"endpoint,omitempty"`
	Bucket          string                    `json:"bucket,omitempty"`
	AccessKeySecret *corev1.SecretKeySelector `json:"accessKeySecret,omitempty"`
	SecretKeySecret *corev1.SecretKeySelector `json:"secretKeySecret,omitempty"`
	Key             string                    `json:"key"`

	CreateBucketIfNotPresent bool              `json:"createBucketIfNotPresent,omitempty"`
	LifecycleRule            *OSSLifecycleRule `json:"lifecycleRule,omitempty"`
	SecurityToken            string            `json:"securityToken,omitempty"`
	UseSDKCreds              bool              `json:"useSDKCreds,omitempty"`
}

// OSSLifecycleRule says when objects of a bucket become rarely used, and when they are deleted.
type OSSLifecycleRule struct {
	MarkInfrequentAccessAfterDays int32 `json:"markInfrequentAccessAfterDays,omitempty"`
	MarkDeletionAfterDays         int32 `json:"markDeletionAfterDays,omitempty"`
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

	ConnectionTimeoutSeconds int32 `json:"connectionTimeoutSeconds,omitempty"`
}
