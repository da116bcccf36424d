package chart

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// Bounds on charts, in bytes.
const (
	// ArchiveMax is the maximum size of a packed chart.
	ArchiveMax = 8 << 20
)

// Chart is a published chart, still packed. A Run unpacks and renders it.
type Chart struct {
	Name    string
	Version string
	// Digest is the digest of the archive, as sha256:HEX.
	Digest string

	archive []byte
}

// Size returns the memory that the chart takes, in bytes.
func (c *Chart) Size() int { return len(c.archive) }

// Open checks a packed chart and reads its name and version. The caller must not change archive
// afterwards.
func Open(run Run, archive []byte) (*Chart, error) {
	if len(archive) > ArchiveMax {
		return nil, fmt.Errorf("the chart has %d bytes; the limit is %d", len(archive), ArchiveMax)
	}
	var answer openAnswer
	if err := ask(run, evaluatorOpen, nil, archive, &answer); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(archive)
	return &Chart{Name: answer.Name, Version: answer.Version, Digest: "sha256:" + hex.EncodeToString(sum[:]), archive: archive}, nil
}

// Render renders the chart to the objects of a release.
func (c *Chart) Render(run Run, req *Request) (*Rendered, error) {
	answer := &Rendered{}
	if err := ask(run, evaluatorRender, req, c.archive, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// archive is a packed chart that this process reads.
type archive []byte

// open checks a packed chart and reads its name and version.
func open(data []byte) (*openAnswer, error) {
	if err := checkArchive(data); err != nil {
		return nil, err
	}
	loaded, err := archive(data).load()
	if err != nil {
		return nil, err
	}
	if loaded.Metadata.Type == "library" {
		return nil, fmt.Errorf("chart %s is a library, which other charts use", loaded.Name())
	}
	if err := complete(loaded); err != nil {
		return nil, err
	}
	return &openAnswer{loaded.Name(), loaded.Metadata.Version}, nil
}

// load unpacks the archive. It does so at each call, because rendering changes the chart in memory.
func (a archive) load() (*v2.Chart, error) { return loader.LoadArchive(bytes.NewReader(a)) }

// complete returns an error that names the dependencies missing in the archive.
func complete(c *v2.Chart) error {
	there := map[string]bool{}
	for _, d := range c.Dependencies() {
		there[d.Name()] = true
	}
	var missing []string
	for _, d := range c.Metadata.Dependencies {
		if d != nil && !there[d.Name] {
			missing = append(missing, d.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("chart %s was packed without %s, which it depends on", c.Name(), strings.Join(missing, ", "))
	}
	return nil
}

// madeUp matches the template functions whose results differ from call to call.
var madeUp = regexp.MustCompile(`\b(rand[A-Z]\w*|shuffle|uuidv4|gen[A-Z]\w*|buildCustomCert|bcrypt|htpasswd|encryptAES|now|ago)\b`)

// makesUp reports whether the source of a template calls a function that returns random or
// time-dependent values. The call may never be reached.
func makesUp(c *v2.Chart) bool {
	for _, t := range c.Templates {
		if t != nil && madeUp.Match(t.Data) {
			return true
		}
	}
	for _, d := range c.Dependencies() {
		if makesUp(d) {
			return true
		}
	}
	return false
}

var errNoKind = errors.New("it has no apiVersion or no kind")
