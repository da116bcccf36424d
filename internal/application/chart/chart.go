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

// The bounds of charts, in bytes.
const (
	// ArchiveMax is that of a packed chart.
	ArchiveMax = 8 << 20
)

// Chart is a chart as it was published. It is read where it is opened and rendered: see Run.
type Chart struct {
	Name    string
	Version string
	// Digest is the archive's, as sha256:HEX.
	Digest string

	archive []byte
}

// Size is how much memory the chart takes, in bytes.
func (c *Chart) Size() int { return len(c.archive) }

// Open has a packed chart read, which the caller no longer changes.
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

// Render has the objects of a release made.
func (c *Chart) Render(run Run, req *Request) (*Rendered, error) {
	answer := &Rendered{}
	if err := ask(run, evaluatorRender, req, c.archive, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// archive is a packed chart that is read here.
type archive []byte

// open reads a packed chart.
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

// load reads the archive, each time anew: rendering changes a chart in memory.
func (a archive) load() (*v2.Chart, error) { return loader.LoadArchive(bytes.NewReader(a)) }

// complete says which charts are missing that the chart is made of.
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

// madeUp finds the functions whose results differ from one call to the next.
var madeUp = regexp.MustCompile(`\b(rand[A-Z]\w*|shuffle|uuidv4|gen[A-Z]\w*|buildCustomCert|bcrypt|htpasswd|encryptAES|now|ago)\b`)

// makesUp says whether a template makes something up, as far as its text shows: rather too often than too seldom.
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
