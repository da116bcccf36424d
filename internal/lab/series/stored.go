package series

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/threshold"
)

// Read reads the report in a directory of results into report, a pointer.
func Read(dir string, report any) error {
	path := filepath.Join(dir, ResultFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if old, oldErr := os.ReadFile(filepath.Join(dir, oldResultFile)); oldErr == nil {
			data, err = old, nil
		}
	}
	if err != nil {
		return err
	}
	var version struct {
		SchemaVersion string `json:"schemaVersion"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if version.SchemaVersion != Schema {
		return fmt.Errorf("%s: the schema version is %q, and this program reads %s", path, version.SchemaVersion, Schema)
	}
	if err := json.Unmarshal(data, report); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Scenario returns the scenario of the report in a directory of results.
func Scenario(dir string) (string, error) {
	var r struct {
		Config struct {
			Scenario string `json:"scenario"`
		} `json:"config"`
	}
	err := Read(dir, &r)
	return r.Config.Scenario, err
}

// Combine adds the runs of another report. They were not made in alternation with those of r, but
// on the same machine. Settings that differ are listed one after the other.
func (r *Report[R]) Combine(other *Report[R]) error {
	if r.Machine.Hostname != other.Machine.Hostname || r.Machine.CPUs != other.Machine.CPUs {
		return fmt.Errorf("a report of %s and one of %s: times of two machines say nothing about each other", r.Machine.Hostname, other.Machine.Hostname)
	}
	last := 0
	for _, run := range r.Runs {
		last = max(last, *run.Repeated())
	}
	for _, run := range other.Runs {
		*run.Repeated() += last
		r.Runs = append(r.Runs, run)
	}
	if r.Config == nil {
		r.Config = map[string]any{}
	}
	for name, v := range other.Config {
		if old, ok := r.Config[name]; !ok {
			r.Config[name] = v
		} else if !reflect.DeepEqual(old, v) {
			r.Config[name] = fmt.Sprintf("%v; %v", old, v)
		}
	}
	if !slices.Contains(strings.Split(r.Version, ", "), other.Version) {
		r.Version += ", " + other.Version
	}
	return nil
}

// CheckThresholds returns an error if the runs of the scenario have no such figures.
func (r *Report[R]) CheckThresholds(thresholds []threshold.Threshold) error {
	var errs []error
	for _, t := range thresholds {
		errs = append(errs, t.Check(reflect.TypeFor[R]()))
	}
	return errors.Join(errs...)
}

// Crossed returns which runs crossed which thresholds, one per line.
func (r *Report[R]) Crossed(thresholds []threshold.Threshold) (crossed []string, err error) {
	for _, run := range r.Measured() {
		for _, t := range thresholds {
			why, err := t.Crossed(run)
			if err != nil {
				return nil, err
			}
			if why != "" {
				crossed = append(crossed, run.Title()+": "+why)
			}
		}
	}
	return crossed, nil
}

// Exports are the forms in which a report can be exported, with the names of the files.
var Exports = map[string]string{"markdown": "report.md", "csv": "report.csv", "json": "report.json"}

// Export writes a report into a directory in one of the forms.
func Export(dir, form string, report any, p page.Page) error {
	f, err := os.Create(filepath.Join(dir, Exports[form]))
	if err != nil {
		return err
	}
	return errors.Join(export(f, form, report, p), f.Close())
}

func export(w io.Writer, form string, report any, p page.Page) error {
	switch form {
	case "markdown":
		return p.Markdown(w)
	case "csv":
		return writeCSV(w, report)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
