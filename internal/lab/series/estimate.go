package series

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/rig"
)

// Estimate is about what the runs of an invocation take.
type Estimate struct {
	Runs int
	Time time.Duration
	// WorkBytes is the disk that the largest run takes while it is made, and ResultBytes what all
	// leave behind.
	WorkBytes, ResultBytes int64
}

// Afford says what an invocation is expected to take, and returns an error if the disk has less.
func (c *Config) Afford(e Estimate) error {
	c.Progress(fmt.Sprintf("%s, about %s; disk: %s while a run is made, %s for the results", page.Plural(e.Runs, "run"),
		roundTime(e.Time), diskSize(e.WorkBytes), diskSize(e.ResultBytes)))
	free := c.Free
	if free == nil {
		free = freeBytes
	}
	work, err := rig.StateDir()
	if err != nil {
		return err
	}
	var errs []error
	for dir, need := range map[string]int64{work: e.WorkBytes, c.OutDir: e.ResultBytes} {
		if dir == work && sameDisk(work, c.OutDir) {
			need += e.ResultBytes
		}
		has, err := free(dir)
		if err != nil {
			return fmt.Errorf("free space of %s: %w", dir, err)
		}
		if has < need {
			errs = append(errs, fmt.Errorf("the measurement needs about %s in %s, which has %s: free the space, or make the load smaller",
				diskSize(need), dir, diskSize(has)))
		}
	}
	return errors.Join(errs...)
}

func roundTime(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(10 * time.Second)
}

// diskSize formats an amount of disk.
func diskSize(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", max(1, (n+1<<20-1)>>20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// freeBytes returns the free space of the file system that has, or would have, a directory.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		return freeBytes(filepath.Dir(dir))
	}
	return int64(s.Bavail) * int64(s.Bsize), err
}

func sameDisk(a, b string) bool {
	var first, second unix.Stat_t
	return unix.Stat(a, &first) == nil && unix.Stat(b, &second) == nil && first.Dev == second.Dev
}
