package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
	"lockstep.dev/lockstep/internal/workflow/executor/archive"
)

// Load fetches the plan's input artifacts to the paths where main expects them.
func Load(ctx context.Context, plan *execapi.ArtifactPlan) error {
	if plan.Install {
		if err := executor.Install(execapi.OwnExec, execapi.StagedExec); err != nil {
			return err
		}
	}
	for i := range plan.Load {
		l := &plan.Load[i]
		err := load(ctx, l)
		if errors.Is(err, os.ErrNotExist) && l.Optional {
			fmt.Fprintf(os.Stderr, "input artifact '%s' does not exist; it is optional\n", l.Name)
			continue
		}
		if err != nil {
			return fmt.Errorf("input artifact '%s': %w", l.Name, err)
		}
	}
	return nil
}

func load(ctx context.Context, l *execapi.Load) error {
	from, err := open(l.From)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.To), 0o777); err != nil {
		return err
	}
	if err := os.RemoveAll(l.To); err != nil { // an earlier attempt may have left something
		return err
	}
	fresh := l.To + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	if err := from.load(ctx, fresh); err != nil {
		return err
	}
	info, err := os.Stat(fresh)
	if err != nil {
		return err
	}
	if l.AsIs || info.IsDir() {
		err = os.Rename(fresh, l.To)
	} else {
		err = archive.Unpack(fresh, l.To)
	}
	if err != nil || l.Mode == nil {
		return err
	}
	return setMode(l.To, fs.FileMode(*l.Mode).Perm(), l.Recurse)
}

// setMode sets the mode of a file, or with recurse of a directory and everything in it. It does not
// follow links.
func setMode(file string, mode fs.FileMode, recurse bool) error {
	if !recurse {
		return os.Chmod(file, mode)
	}
	return filepath.WalkDir(file, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chmod(name, mode)
	})
}

// Upload saves the artifacts that main containers left in dir, once the containers have ended or
// stop is closed.
func Upload(ctx context.Context, plan *execapi.ArtifactPlan, dir string, stop <-chan struct{}) execapi.Report {
	var report execapi.Report
	for _, container := range plan.After {
		ended := make(chan error, 1)
		go func() { ended <- executor.AwaitEnd(dir, container, stop) }()
		select {
		case <-stop: // the kubelet signals that all containers have ended
		case err := <-ended:
			if err != nil {
				return failed(err)
			}
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return failed(err)
	}
	defer root.Close()
	for i := range plan.Upload {
		u := &plan.Upload[i]
		rel, err := filepath.Rel(dir, u.From)
		if err != nil {
			return failed(err)
		}
		from := source{root, rel}
		if _, err := root.Lstat(rel); errors.Is(err, os.ErrNotExist) {
			continue // main has reported the reason, or the artifact is optional
		}
		to, err := open(u.To)
		if err == nil {
			err = to.save(ctx, from)
		}
		if err != nil {
			return failed(fmt.Errorf("output artifact '%s': %w", u.Name, err))
		}
		report.Artifacts = append(report.Artifacts, execapi.Saved{Name: u.Name, Location: u.Report})
	}
	return report
}

func failed(err error) execapi.Report {
	return execapi.Report{Failed: true, Message: execapi.Shorten(err.Error())}
}

// deleters is the number of concurrent deletions.
const deleters = 8

// Delete deletes the plan's artifacts. It continues after a failure. The report lists the artifacts
// that are left, and has the error of the first of them.
func Delete(ctx context.Context, plan *execapi.ArtifactPlan) execapi.Report {
	errs := make([]error, len(plan.Delete))
	var running sync.WaitGroup
	gate := make(chan struct{}, deleters)
	for i := range plan.Delete {
		gate <- struct{}{}
		running.Go(func() {
			defer func() { <-gate }()
			errs[i] = remove(ctx, &plan.Delete[i])
		})
	}
	running.Wait()
	var report execapi.Report
	for i, err := range errs {
		if err == nil {
			continue
		}
		if len(report.Left) == 0 {
			report = failed(fmt.Errorf("artifact '%s': %w", plan.Delete[i].Name, err))
		}
		report.Left = append(report.Left, i)
	}
	return report
}

func remove(ctx context.Context, d *execapi.Delete) error {
	at, err := open(d.At)
	if err != nil {
		return err
	}
	if v, ok := at.(volumeStore); ok {
		v.prune = d.Prune
		at = v
	}
	return at.remove(ctx)
}
