package execapi

import "encoding/json"

// ArtifactPlanEnv is the environment variable that holds the ArtifactPlan of a container.
const ArtifactPlanEnv = "LOCKSTEP_ARTIFACTS"

// ArtifactPlan lists what lockstep-exec-io does before main (init), after main (wait), or to delete
// artifacts (gc).
type ArtifactPlan struct {
	// Install copies lockstep-exec into the shared volume.
	Install bool   `json:"install,omitempty"`
	Load    []Load `json:"load,omitempty"`
	// After are the containers that have to end before the uploads start.
	After  []string `json:"after,omitempty"`
	Upload []Upload `json:"upload,omitempty"`
	Delete []Delete `json:"delete,omitempty"`
	// MaxMessage is the maximum size of the termination message in bytes.
	MaxMessage int `json:"maxMessage,omitempty"`
}

// Load is an input artifact.
type Load struct {
	Name     string   `json:"name"`
	From     Location `json:"from"`
	To       string   `json:"to"`
	AsIs     bool     `json:"asIs,omitempty"` // do not unpack archives
	Mode     *int32   `json:"mode,omitempty"`
	Recurse  bool     `json:"recurse,omitempty"` // apply the mode to all files of a directory
	Optional bool     `json:"optional,omitempty"`
}

// Upload is an output artifact that main left at From.
type Upload struct {
	Name     string   `json:"name"`
	From     string   `json:"from"`
	To       Location `json:"to"`
	Optional bool     `json:"optional,omitempty"`
	// Report is the location to put into the report.
	Report json.RawMessage `json:"report"`
}

// Delete is an artifact to delete.
type Delete struct {
	Name string   `json:"name"` // node/artifact
	At   Location `json:"at"`
	// Prune is the number of directories above a file on a volume to delete with it if they are
	// empty.
	Prune int `json:"prune,omitempty"`
}

// Location is the location of an artifact; exactly one field is set. It has the paths of files with
// secrets, not the secrets.
type Location struct {
	S3     *S3    `json:"s3,omitempty"`
	GCS    *GCS   `json:"gcs,omitempty"`
	Azure  *Azure `json:"azure,omitempty"`
	OSS    *OSS   `json:"oss,omitempty"`
	HDFS   *HDFS  `json:"hdfs,omitempty"`
	HTTP   *HTTP  `json:"http,omitempty"`
	Git    *Git   `json:"git,omitempty"`
	Raw    *Raw   `json:"raw,omitempty"`
	Volume *File  `json:"volume,omitempty"`
}

// S3 is an object, or a directory if the key ends in "/" or has objects below it.
type S3 struct {
	Endpoint     string `json:"endpoint"`
	Bucket       string `json:"bucket"`
	Key          string `json:"key"`
	Region       string `json:"region,omitempty"`
	Insecure     bool   `json:"insecure,omitempty"`
	AccessKey    string `json:"accessKey,omitempty"` // this and the next three are paths of files
	SecretKey    string `json:"secretKey,omitempty"`
	SessionToken string `json:"sessionToken,omitempty"`
	CA           string `json:"ca,omitempty"`
	RoleARN      string `json:"roleARN,omitempty"`
	FromMachine  bool   `json:"fromMachine,omitempty"` // use credentials of machine or service account

	// BucketInHost and BucketInPath say where requests name the bucket; neither: the endpoint
	// decides.
	BucketInHost bool `json:"bucketInHost,omitempty"`
	BucketInPath bool `json:"bucketInPath,omitempty"`
	// CreateBucket creates a bucket that does not exist before an object is stored.
	CreateBucket bool          `json:"createBucket,omitempty"`
	LockObjects  bool          `json:"lockObjects,omitempty"` // of a bucket that is created
	Encryption   *S3Encryption `json:"encryption,omitempty"`
}

// S3Encryption says with which key the store encrypts objects: one of the KMS, one that requests
// bring, or one of its own.
type S3Encryption struct {
	KMSKey      string            `json:"kmsKey,omitempty"`
	KMSContext  map[string]string `json:"kmsContext,omitempty"`
	CustomerKey string            `json:"customerKey,omitempty"` // path of a file
}

// HTTP is the content at a URL.
type HTTP struct {
	URL      string   `json:"url"`
	Headers  []Header `json:"headers,omitempty"`
	Username string   `json:"username,omitempty"` // paths of files
	Password string   `json:"password,omitempty"`

	ClientCert string  `json:"clientCert,omitempty"` // paths of files
	ClientKey  string  `json:"clientKey,omitempty"`
	OAuth2     *OAuth2 `json:"oauth2,omitempty"`
}

// OAuth2 gets a token by the client credentials grant. The first three fields are paths of files.
type OAuth2 struct {
	ClientID     string              `json:"clientID"`
	ClientSecret string              `json:"clientSecret"`
	TokenURL     string              `json:"tokenURL"`
	Scopes       []string            `json:"scopes,omitempty"`
	Parameters   map[string][]string `json:"parameters,omitempty"`
}

// Header is a header with its value, or with the path of the file that holds the value.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	File  string `json:"file,omitempty"`
}

// Git is a checkout of a repository.
type Git struct {
	Repo       string   `json:"repo"`
	Revision   string   `json:"revision,omitempty"`
	Branch     string   `json:"branch,omitempty"`
	Depth      int      `json:"depth,omitempty"`
	Fetch      []string `json:"fetch,omitempty"`
	Username   string   `json:"username,omitempty"` // this and the next two are paths of files
	Password   string   `json:"password,omitempty"`
	SSHKey     string   `json:"sshKey,omitempty"`
	NoHostKey  bool     `json:"noHostKey,omitempty"`
	NoTLS      bool     `json:"noTLS,omitempty"` // do not verify certificates
	Submodules bool     `json:"submodules,omitempty"`
	Single     bool     `json:"single,omitempty"` // fetch one branch only
}

// Raw is the content of an artifact.
type Raw struct {
	Data string `json:"data"`
}

// File is a file or directory on a volume that is mounted at Root.
type File struct {
	Root string `json:"root"`
	Path string `json:"path"` // relative to Root
}

// GCS is an object in Google Cloud Storage, or a directory of objects.
type GCS struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	// Account is the path of a file with the key of a service account, or with other credentials of
	// Google; "": those of the pod or machine.
	Account string `json:"account,omitempty"`
}

// Azure is a blob in Azure Blob Storage, or a directory of blobs.
type Azure struct {
	Endpoint    string `json:"endpoint"`
	Container   string `json:"container"`
	Blob        string `json:"blob"`
	AccountKey  string `json:"accountKey,omitempty"`  // path of a file with a key or a shared access signature
	FromMachine bool   `json:"fromMachine,omitempty"` // use credentials of machine or service account
}

// OSS is an object in Alibaba Cloud's Object Storage Service, or a directory of objects.
type OSS struct {
	Endpoint      string `json:"endpoint"`
	Bucket        string `json:"bucket"`
	Key           string `json:"key"`
	AccessKey     string `json:"accessKey,omitempty"` // paths of files
	SecretKey     string `json:"secretKey,omitempty"`
	SecurityToken string `json:"securityToken,omitempty"`
	FromMachine   bool   `json:"fromMachine,omitempty"`  // use credentials of machine or service account
	CreateBucket  bool   `json:"createBucket,omitempty"` // before an object is stored
}

// HDFS is a file or directory of HDFS.
type HDFS struct {
	Addresses  []string  `json:"addresses"` // of the name nodes
	User       string    `json:"user,omitempty"`
	Path       string    `json:"path"`
	Force      bool      `json:"force,omitempty"` // overwrite a file
	Protection string    `json:"protection,omitempty"`
	Kerberos   *Kerberos `json:"kerberos,omitempty"`
}

// Kerberos says how a client proves who it is, by a cache of tickets or by a user's keytab.
type Kerberos struct {
	Cache   string `json:"cache,omitempty"` // this and the next two are paths of files
	Keytab  string `json:"keytab,omitempty"`
	Config  string `json:"config"`
	User    string `json:"user,omitempty"`
	Realm   string `json:"realm,omitempty"`
	Service string `json:"service"` // the principal of the name node
}
