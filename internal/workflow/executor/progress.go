package executor

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	// progressLook is the interval at which the command's progress is read; progressTell is the
	// interval at which it is reported while the command runs: each report is a write to the API
	// server. The environment variables override them with Go durations.
	progressLook, progressTell       = 3 * time.Second, time.Minute
	progressLookEnv, progressTellEnv = "ARGO_PROGRESS_FILE_TICK_DURATION", "ARGO_PROGRESS_PATCH_TICK_DURATION"
	// progressMin is the minimum of both intervals.
	progressMin = time.Second
	// maxProgress bounds the bytes read from the progress file.
	maxProgress = 64
)

// watchProgress reports the command's progress until the returned function is called, which returns
// the last progress.
func (r *run) watchProgress() (last func() string) {
	if r.plan.Progress == "" {
		return func() string { return "" }
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		look := time.NewTicker(durationOf(progressLookEnv, progressLook))
		defer look.Stop()
		every := durationOf(progressTellEnv, progressTell)
		var told string
		var at time.Time
		for {
			select {
			case <-stop:
				return
			case <-look.C:
			}
			now := r.readProgress()
			if now == "" || now == told || time.Since(at) < every || r.plan.Task == nil {
				continue
			}
			put := r.config.Task
			if put == nil {
				put = createTaskResult
			}
			at = time.Now()
			if err := put(r.plan.Task, &execapi.Report{Progress: now}); err != nil {
				// The progress is reported again at the end, without the API server.
				fmt.Fprintf(r.config.Stderr, "lockstep-exec: progress cannot be told: %v\n", err)
				return
			}
			told = now
		}
	}()
	return func() string {
		close(stop)
		<-done
		return r.readProgress()
	}
}

// readProgress returns the last line of the command's progress file.
func (r *run) readProgress() string {
	f, err := os.Open(r.plan.Progress)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if size := info.Size(); size > maxProgress {
		if _, err := f.Seek(size-maxProgress, io.SeekStart); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxProgress))
	if err != nil {
		return ""
	}
	lines := strings.Fields(string(text))
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// durationOf returns the duration in an environment variable, but at least progressMin, or
// otherwise if the variable has no duration.
func durationOf(name string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return max(d, progressMin)
}
