package execapi

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"strings"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/unpack"
)

// ExitExecutor is the exit code of lockstep-exec when it fails itself.
const ExitExecutor = 64

// pack returns data gzipped and base64-encoded.
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

// MaxMessage is the maximum size of a termination message in bytes; MaxMessages is the maximum size
// of the messages of all containers of a pod together. Both are limits of the kubelet.
const (
	MaxMessage  = 4096
	MaxMessages = 12 << 10
)

// MaxText bounds the size in bytes of a message for users in a report.
const MaxText = 1 << 10

// Shorten truncates a text to MaxText bytes.
func Shorten(text string) string { return clip.Text(text, MaxText) }

// Report is the content of the termination message of a container that ran lockstep-exec.
type Report struct {
	Version    int               `json:"lockstep"` // 1
	Result     *string           `json:"result,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Artifacts  []Saved           `json:"artifacts,omitempty"`
	Progress   string            `json:"progress,omitempty"`
	// Message is the reason why the executor failed, or the command's own termination message.
	Message string `json:"message,omitempty"`
	// Failed is true if the executor itself failed; Exit is then the command's own exit code, if it
	// ran.
	Failed bool `json:"failed,omitempty"`
	Exit   *int `json:"exit,omitempty"`
	// Omitted is the name of the failed container because of which the command did not run.
	Omitted string `json:"omitted,omitempty"`
	// Plain is true if the container ran no command of the user: its exit code has no meaning, and
	// only Message reports a result.
	Plain bool `json:"plain,omitempty"`
	// Left are the indexes in the plan of the artifacts that could not be deleted.
	Left []int `json:"left,omitempty"`
	// Elsewhere is true if the outputs are in the node's WorkflowTaskResult.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

// Saved is a saved artifact and its location.
type Saved struct {
	Name     string          `json:"name"`
	Location json.RawMessage `json:"location"`
}

// packed is the compressed form of a report.
type packed struct {
	Version int    `json:"lockstep"`
	Gzip    string `json:"gzip"`
}

// Encode returns the report as a termination message, compressed if it is longer than max bytes. It
// returns false if the compressed message is longer too.
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

// Fit returns the report as a termination message of at most max bytes. If it is longer, the
// artifacts are left out first, and then the message is cut: the kubelet would cut the JSON.
func (r Report) Fit(max int) string {
	text, fits := r.Encode(max)
	if !fits {
		r.Artifacts = nil
		text, fits = r.Encode(max)
	}
	for !fits && r.Message != "" {
		r.Message = strings.ToValidUTF8(r.Message[:len(r.Message)/2], "")
		text, fits = r.Encode(max)
	}
	return text
}

// DecodeReport decodes a termination message. It returns false for a message that is not a report.
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
