package apply

import (
	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
)

// QuotaTarget is the wanted CFS quotas of a pod, in thousandths of a CPU; 0 is none.
type QuotaTarget struct {
	// Path is the pod's cgroup, and Pod its quota.
	Path string
	Pod  int64
	// Leaves are the quotas of its containers, by path.
	Leaves map[string]int64
}

// SetQuotas writes the quotas of a pod that differ, and returns the number of writes. A cgroup that is
// gone, or has no cpu controller, is skipped. The pod's own quota is loosened before and tightened
// after those of its containers, because version 1 accepts no other order.
func SetQuotas(q cgroup.Quotas, t QuotaTarget) (writes int, err error) {
	set := func(dir string, milli int64) error {
		is, err := q.Is(dir, milli)
		if err == nil && !is {
			writes++
			err = q.Set(dir, milli)
		}
		if err == nil || cgroup.Gone(err) {
			return nil
		}
		return &atError{dir, err}
	}
	has, err := q.Get(t.Path)
	if cgroup.Gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, &atError{t.Path, err}
	}
	looser := has != 0 && (t.Pod == 0 || t.Pod > has)
	if looser {
		if err := set(t.Path, t.Pod); err != nil {
			return writes, err
		}
	}
	for dir, milli := range t.Leaves {
		if err := set(dir, milli); err != nil {
			return writes, err
		}
	}
	if !looser {
		err = set(t.Path, t.Pod)
	}
	return writes, err
}
