package chart

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"lockstep.dev/lockstep/internal/unpack"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// Bounds on the contents of an archive, in addition to unpack.Chart.
const (
	filesMax     = 10_000
	nestedMax    = 3        // depth of charts inside charts
	yamlMax      = 1 << 20  // bytes of one file that is parsed on opening
	yamlTotalMax = 4 << 20  // bytes of all such files
	aheadMax     = 64 << 10 // bytes of a name or an extended header
)

var (
	errPart  = errors.New("this is not a packed chart: a part of it is missing")
	errDeep  = fmt.Errorf("charts are more than %d deep in each other", nestedMax)
	errFiles = fmt.Errorf("the chart has more than %d files", filesMax)
)

// measure holds what remains of the bounds while an archive is read.
type measure struct {
	bytes int64
	files int
	yaml  int
}

// checkArchive returns an error if the archive, including the archives of other charts inside it,
// exceeds the bounds. Helm's loader bounds each archive by itself, but one archive may contain
// hundreds.
func checkArchive(archive []byte) error {
	m := &measure{bytes: unpack.Chart.Bytes, files: filesMax, yaml: yamlTotalMax}
	return m.archive(archive, 0)
}

func (m *measure) archive(archive []byte, depth int) error {
	if depth > nestedMax {
		return errDeep
	}
	limit := unpack.Chart
	limit.Bytes = m.bytes
	data, err := unpack.Gzip(archive, limit)
	if large := (*unpack.TooLargeError)(nil); errors.As(err, &large) {
		return &unpack.TooLargeError{What: limit.What, Most: unpack.Chart.Bytes, Units: large.Units}
	}
	if err != nil {
		return fmt.Errorf("this is not a packed chart: %w", err)
	}
	m.bytes -= int64(len(data))
	for files := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.New("this is not a packed chart: it is no tar archive, or a part of it is missing")
		}
		if m.files--; m.files < 0 {
			return errFiles
		}
		if len(header.Name)+len(header.Linkname) > aheadMax {
			return errors.New("the chart has a file with a name that is too long")
		}
		if err := m.file(header.Name, files, depth); err != nil {
			return err
		}
	}
}

// file checks one file of an archive if opening a chart would read that file.
func (m *measure) file(name string, r io.Reader, depth int) error {
	base := name[strings.LastIndexAny(name, `/\`)+1:] // the loader accepts both separators
	switch {
	case strings.HasSuffix(base, ".tgz"):
		inner, err := io.ReadAll(r)
		if err != nil {
			return errPart
		}
		var large *unpack.TooLargeError
		if err := m.archive(inner, depth+1); errors.As(err, &large) || errors.Is(err, errDeep) || errors.Is(err, errFiles) {
			return err
		}
		return nil // the file may not be a chart
	case base == "Chart.yaml" || base == "Chart.lock" || base == "values.yaml" || base == "requirements.yaml" || base == "requirements.lock":
		text, err := io.ReadAll(r)
		if err != nil {
			return errPart
		}
		if m.yaml -= len(text); m.yaml < 0 {
			return &unpack.TooLargeError{What: "the chart's YAML", Most: yamlTotalMax, Units: "bytes"}
		}
		return yamldoc.Check(text, yamlMax, base)
	}
	return nil
}
