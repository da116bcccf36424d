package handover

import "encoding/json"

// ArtifactPlanEnv is the environment variable that holds the plan of a container that moves artifacts.
const ArtifactPlanEnv = "LOCKSTEP_ARTIFACTS"

// ArtifactPlan is what lockstep-exec-io does before main (init), after it (wait), or when artifacts are deleted.
type ArtifactPlan struct {
	// Install puts lockstep-exec where the other containers find it.
	Install bool   `json:"install,omitempty"`
	Load    []Load `json:"load,omitempty"`
	// After are the containers whose end starts the uploads.
	After  []string `json:"after,omitempty"`
	Upload []Upload `json:"upload,omitempty"`
	Delete []Delete `json:"delete,omitempty"`
	// MaxMessage is how large the termination message may be, in bytes.
	MaxMessage int `json:"maxMessage,omitempty"`
}

// Load is an input artifact.
type Load struct {
	Name     string   `json:"name"`
	From     Location `json:"from"`
	To       string   `json:"to"`
	AsIs     bool     `json:"asIs,omitempty"` // do not unpack archives
	Mode     *int32   `json:"mode,omitempty"`
	Recurse  bool     `json:"recurse,omitempty"` // the mode is for all files of a directory
	Optional bool     `json:"optional,omitempty"`
}

// Upload is an output artifact that main has left at From.
type Upload struct {
	Name     string   `json:"name"`
	From     string   `json:"from"`
	To       Location `json:"to"`
	Optional bool     `json:"optional,omitempty"`
	// Report is the location as it goes into the report.
	Report json.RawMessage `json:"report"`
}

// Delete is an artifact that is deleted.
type Delete struct {
	Name string   `json:"name"` // node/artifact
	At   Location `json:"at"`
	// Prune is how many directories around a file on a volume go with it if nothing else is in them.
	Prune int `json:"prune,omitempty"`
}

// Location is where an artifact is; one of the fields. Secrets are in files, so that a Location has none.
type Location struct {
	S3     *S3   `json:"s3,omitempty"`
	HTTP   *HTTP `json:"http,omitempty"`
	Git    *Git  `json:"git,omitempty"`
	Raw    *Raw  `json:"raw,omitempty"`
	Volume *File `json:"volume,omitempty"`
}

// S3 is an object, or with a key that ends in "/" or has objects below it, a directory.
type S3 struct {
	Endpoint     string `json:"endpoint"`
	Bucket       string `json:"bucket"`
	Key          string `json:"key"`
	Region       string `json:"region,omitempty"`
	Insecure     bool   `json:"insecure,omitempty"`
	AccessKey    string `json:"accessKey,omitempty"` // files
	SecretKey    string `json:"secretKey,omitempty"`
	SessionToken string `json:"sessionToken,omitempty"`
	CA           string `json:"ca,omitempty"`
	RoleARN      string `json:"roleARN,omitempty"`
	FromMachine  bool   `json:"fromMachine,omitempty"` // credentials of the machine or service account
}

// HTTP is what a URL answers.
type HTTP struct {
	URL      string   `json:"url"`
	Headers  []Header `json:"headers,omitempty"`
	Username string   `json:"username,omitempty"` // files
	Password string   `json:"password,omitempty"`
}

// Header is a header with its value, or the file that holds it.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	File  string `json:"file,omitempty"`
}

// Git is a checkout.
type Git struct {
	Repo       string   `json:"repo"`
	Revision   string   `json:"revision,omitempty"`
	Branch     string   `json:"branch,omitempty"`
	Depth      int      `json:"depth,omitempty"`
	Fetch      []string `json:"fetch,omitempty"`
	Username   string   `json:"username,omitempty"` // files
	Password   string   `json:"password,omitempty"`
	SSHKey     string   `json:"sshKey,omitempty"`
	NoHostKey  bool     `json:"noHostKey,omitempty"`
	NoTLS      bool     `json:"noTLS,omitempty"` // certificates are not verified
	Submodules bool     `json:"submodules,omitempty"`
	Single     bool     `json:"single,omitempty"` // one branch
}

// Raw is a text.
type Raw struct {
	Data string `json:"data"`
}

// File is a file or directory on a volume that the container has mounted at Root.
type File struct {
	Root string `json:"root"`
	Path string `json:"path"` // below Root
}

// Encode returns the plan as the value of an environment variable.
func (p *ArtifactPlan) Encode() (string, error) { return encode(p) }

// DecodeArtifactPlan reads the value of ArtifactPlanEnv.
func DecodeArtifactPlan(text string) (*ArtifactPlan, error) {
	return decode[ArtifactPlan](ArtifactPlanEnv, text)
}
