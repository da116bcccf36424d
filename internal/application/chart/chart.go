package chart

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// The bounds of charts, in bytes.
const (
	// ArchiveMax is that of a packed chart.
	ArchiveMax = 8 << 20
	// unpackedMax is that of what is in it.
	unpackedMax = 32 << 20
)

// Chart is a chart as it was published.
type Chart struct {
	Name    string
	Version string
	// Digest is the archive's, as sha256:HEX.
	Digest string

	archive []byte
	// random says that a template makes something up: see Once.
	random bool
}

// Size is how much memory the chart takes, in bytes.
func (c *Chart) Size() int { return len(c.archive) }

// Open reads a packed chart, which the caller no longer changes.
func Open(archive []byte) (*Chart, error) {
	if len(archive) > ArchiveMax {
		return nil, fmt.Errorf("the chart has %d bytes; the limit is %d", len(archive), ArchiveMax)
	}
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("this is not a packed chart: %w", err)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(z, unpackedMax+1))
	if err != nil {
		return nil, fmt.Errorf("this is not a packed chart: %w", err)
	}
	if n > unpackedMax {
		return nil, fmt.Errorf("the chart has more than %d bytes unpacked", unpackedMax)
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	if loaded.Metadata.Type == "library" {
		return nil, fmt.Errorf("chart %s is a library, which other charts use", loaded.Name())
	}
	if err := complete(loaded); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(archive)
	return &Chart{
		Name: loaded.Name(), Version: loaded.Metadata.Version, Digest: "sha256:" + hex.EncodeToString(sum[:]),
		archive: archive, random: makesUp(loaded),
	}, nil
}

// load reads the archive once more: rendering changes a chart in memory.
func (c *Chart) load() (*v2.Chart, error) { return loader.LoadArchive(bytes.NewReader(c.archive)) }

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
