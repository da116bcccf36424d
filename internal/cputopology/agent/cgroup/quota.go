package cgroup

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	fileMax    = "cpu.max"           // version 2
	fileQuota  = "cpu.cfs_quota_us"  // version 1
	filePeriod = "cpu.cfs_period_us" // version 1
)

// quotaMinMicros is the smallest quota that kernels accept, and kubelets write.
const quotaMinMicros = 1000

// Quotas reads and writes the CFS quotas of a hierarchy with the cpu controller: how much CPU time the
// processes of a cgroup may use in each period. Quotas are in thousandths of a CPU; 0 is no quota.
type Quotas struct {
	Files   Files
	Version Version
}

// FindCPU returns the hierarchy with the cpu controller below mount, for cgroups of a version. ok is
// false if there is none; then there are no quotas.
func FindCPU(mount string, version Version) (dir Dir, ok bool) {
	if version == V2 {
		return Dir(mount), true
	}
	for _, name := range []string{"cpu", "cpu,cpuacct"} {
		dir := filepath.Join(mount, name)
		if _, err := os.Stat(filepath.Join(dir, "cpu.shares")); err == nil {
			return Dir(dir), true
		}
	}
	return "", false
}

// Get returns a cgroup's quota.
func (q Quotas) Get(dir string) (milli int64, err error) {
	micros, period, err := q.read(dir)
	if err != nil || micros < 0 {
		return 0, err
	}
	return (micros*1000 + period/2) / period, nil
}

// Is reports whether a cgroup has the quota that Set writes.
func (q Quotas) Is(dir string, milli int64) (bool, error) {
	micros, period, err := q.read(dir)
	return err == nil && micros == quotaMicros(milli, period), err
}

// Set writes a cgroup's quota. The period stays as it is.
func (q Quotas) Set(dir string, milli int64) error {
	_, period, err := q.read(dir)
	if err != nil {
		return err
	}
	micros := quotaMicros(milli, period)
	file, value := fileQuota, strconv.FormatInt(micros, 10)
	if q.Version == V2 {
		if file = fileMax; micros < 0 {
			value = "max"
		}
	}
	return q.Files.WriteFile(path.Join(dir, file), value+"\n")
}

// quotaMicros returns a quota in microseconds in each period, -1 for none.
func quotaMicros(milli, period int64) int64 {
	if milli == 0 {
		return -1
	}
	return max(milli*period/1000, quotaMinMicros)
}

// read returns the quota in microseconds, -1 for none, and the period.
func (q Quotas) read(dir string) (micros, period int64, err error) {
	var texts [2]string
	if q.Version == V2 {
		data, err := q.Files.ReadFile(path.Join(dir, fileMax))
		if err != nil {
			return 0, 0, err
		}
		texts[0], texts[1], _ = strings.Cut(strings.TrimSpace(string(data)), " ")
	} else {
		for i, file := range []string{fileQuota, filePeriod} {
			data, err := q.Files.ReadFile(path.Join(dir, file))
			if err != nil {
				return 0, 0, err
			}
			texts[i] = strings.TrimSpace(string(data))
		}
	}
	if texts[0] == "max" {
		texts[0] = "-1"
	}
	micros, err = strconv.ParseInt(texts[0], 10, 64)
	if err == nil {
		period, err = strconv.ParseInt(texts[1], 10, 64)
	}
	if err != nil || period <= 0 {
		return 0, 0, fmt.Errorf("/%s: quota %q in a period of %q", dir, texts[0], texts[1])
	}
	return micros, period, nil
}
