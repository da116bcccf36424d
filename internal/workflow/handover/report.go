package handover

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"strings"

	"lockstep.dev/lockstep/internal/unpack"
)

// ExitExecutor is the exit code of lockstep-exec when it fails itself.
const ExitExecutor = 64

// pack returns data compressed, as text.
func pack(data []byte) (string, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := z.Write(data); err != nil {
		return "", err
	}
	err = z.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes()), err
}

// MaxMessage is how large a termination message may be, and MaxMessages those of all containers of a pod together, in bytes:
// limits of the kubelet.
const (
	MaxMessage  = 4096
	MaxMessages = 12 << 10
)

// MaxText bounds a text that people read in a report, in bytes.
const MaxText = 1 << 10

// Shorten returns the text, or as much of it as MaxText allows.
func Shorten(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.ToValidUTF8(text[:MaxText], "") + "…"
}

// Report is what lockstep-exec says in a container's termination message.
type Report struct {
	Version    int               `json:"lockstep"` // 1
	Result     *string           `json:"result,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Artifacts  []Saved           `json:"artifacts,omitempty"`
	Progress   string            `json:"progress,omitempty"`
	// Message says why the executor failed, or what the command left as its termination message.
	Message string `json:"message,omitempty"`
	// Failed says that it was the executor that failed; Exit is then the command's own exit code, if it ran.
	Failed bool `json:"failed,omitempty"`
	Exit   *int `json:"exit,omitempty"`
	// Omitted says that the command did not run, because the container that it names failed.
	Omitted string `json:"omitted,omitempty"`
	// Plain says that the container ran nothing of the user's: its exit code means nothing, and Message is all that is to be said.
	Plain bool `json:"plain,omitempty"`
	// Left are the places in the plan of artifacts that could not be deleted.
	Left []int `json:"left,omitempty"`
	// Elsewhere says that the outputs are in the node's WorkflowTaskResult.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

// Saved is an artifact and where it is.
type Saved struct {
	Name     string          `json:"name"`
	Location json.RawMessage `json:"location"`
}

// packed is a report that is compressed.
type packed struct {
	Version int    `json:"lockstep"`
	Gzip    string `json:"gzip"`
}

// Encode returns the report as a termination message of at most max bytes, and whether it fits.
func (r Report) Encode(max int) (string, bool) {
	r.Version = 1
	data, err := json.Marshal(r)
	if err != nil {
		return "", false
	}
	if len(data) <= max {
		return string(data), true
	}
	text, err := pack(data)
	if err != nil {
		return "", false
	}
	data, err = json.Marshal(packed{Version: 1, Gzip: text})
	return string(data), err == nil && len(data) <= max
}

// DecodeReport reads a termination message. It is false for one that is not a report.
func DecodeReport(message string) (Report, bool) {
	var r Report
	if !strings.HasPrefix(message, `{"lockstep":1,`) && message != `{"lockstep":1}` {
		return r, false
	}
	var p packed
	if err := json.Unmarshal([]byte(message), &p); err != nil {
		return r, false
	}
	if p.Gzip != "" {
		text, err := unpack.Base64Gzip(p.Gzip, unpack.Report)
		if err != nil {
			return r, false
		}
		message = string(text)
	}
	err := json.Unmarshal([]byte(message), &r)
	return r, err == nil
}
