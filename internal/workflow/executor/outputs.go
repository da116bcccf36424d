package executor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/archive"
)

// outputs collects the outputs of the command. Missing outputs are an error only if the command
// succeeded.
func (r *run) outputs(code int) error {
	if r.plan.Result {
		text := r.result.text()
		r.report.Result = &text
	}
	var errs []error
	for _, p := range r.plan.Parameters {
		value, err := parameter(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("output parameter '%s': %w", p.Name, err))
			continue
		}
		if r.report.Parameters == nil {
			r.report.Parameters = map[string]string{}
		}
		r.report.Parameters[p.Name] = value
	}
	for _, s := range r.plan.Save {
		err := save(s)
		switch {
		case errors.Is(err, os.ErrNotExist) && s.Optional:
		case err != nil:
			errs = append(errs, fmt.Errorf("output artifact '%s': %w", s.Name, err))
		case s.Location != nil:
			r.report.Artifacts = append(r.report.Artifacts, execapi.Saved{Name: s.Name, Location: s.Location})
		}
	}
	if code == 0 {
		return errors.Join(errs...)
	}
	return nil
}

func parameter(p execapi.Parameter) (string, error) {
	f, err := os.Open(p.Path)
	if errors.Is(err, os.ErrNotExist) && p.Default != nil {
		return *p.Default, nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, execapi.MaxResult+1))
	if err != nil {
		return "", err
	}
	if len(data) > execapi.MaxResult {
		return "", fmt.Errorf("%s: is larger than %d KiB; use an artifact", p.Path, execapi.MaxResult>>10)
	}
	return strings.TrimSuffix(string(data), "\n"), nil
}

func save(s execapi.Save) error {
	if _, err := os.Stat(s.Path); err != nil {
		return err
	}
	if err := makeDir(filepath.Dir(s.To)); err != nil {
		return err
	}
	return archive.Pack(s.Path, s.To, s.Archive, s.Level)
}
