package enforce

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/agent/apply"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Units sets the CPUs, memory nodes and CFS quotas (in thousandths of a CPU; 0 is none) that systemd
// gives its units. Empty sets lift the restriction; nil values are left as they are.
type Units interface {
	Allow(unit string, cpus cpuset.Set, mems *cpuset.Set, quota *int64) error
}

// Bounds on what systemd is told.
const (
	tellMax   = 64 // calls in a pass, besides those for pinned containers
	tellRetry = 30 * time.Second
)

// unit is a cgroup that systemd manages, with its wanted sets.
type unit struct {
	name   string
	cpus   cpuset.Set
	mems   *cpuset.Set
	quota  *desired.Quota
	pinned bool
}

func (u unit) String() string {
	text := u.cpus.String()
	if u.mems != nil {
		text += " mems " + u.mems.String()
	}
	if u.quota != nil {
		text += fmt.Sprint(" quota ", u.quota.Own)
	}
	return text
}

// unitName returns the name of the unit of a cgroup, or "" if systemd does not manage it.
func unitName(dir string) string {
	if name := path.Base(dir); strings.HasSuffix(name, ".slice") || strings.HasSuffix(name, ".scope") {
		return name
	}
	return ""
}

// unitsOf returns the units of a target that the agent writes.
func unitsOf(t apply.Target, pinned map[string]bool, quotas map[string]*desired.Quota) []unit {
	if unitName(t.Pod.Path) == "" {
		return nil
	}
	var out []unit
	whole, own := true, false
	for i, leaf := range t.Leaves {
		dir := t.Pod.Leaves[i].Path
		if leaf.Keep {
			whole = false // the pod's cgroup has the kubelet's CPUs, too
			continue
		}
		own = own || pinned[dir]
		if name := unitName(dir); name != "" {
			out = append(out, unit{name, leaf.CPUs, leaf.Mems, quotas[dir], pinned[dir]})
		}
	}
	if whole {
		out = append(out, unit{unitName(t.Pod.Path), t.CPUs, nil, quotas[t.Pod.Path], own})
	}
	return out
}

// tell tells systemd the sets of its units that have changed, those of pinned containers first.
func (e *Enforcer) tell(targets []apply.Target, pinned map[string]bool, quotas map[string]*desired.Quota, now time.Time,
	out *Outcome) {
	if e.cfg.Units == nil || e.cfg.Observe {
		return
	}
	told := make(map[string]string, len(e.told))
	var news []unit
	for _, t := range targets {
		for _, u := range unitsOf(t, pinned, quotas) {
			switch was, known := e.told[u.name]; {
			case e.failing[t.Pod.UID] != nil: // it is not in the state that it should be in
				if known {
					told[u.name] = was
				}
			case known && was == u.String():
				told[u.name] = was
			default:
				news = append(news, u)
			}
		}
	}
	e.told = told
	slices.SortStableFunc(news, func(a, b unit) int { return cmp.Compare(rank(a), rank(b)) })
	others := 0
	for _, u := range news {
		if now.Before(e.tellNext) {
			break
		}
		if !u.pinned {
			if others++; others > tellMax {
				break // the next pass goes on
			}
		}
		var quota *int64
		if u.quota != nil {
			quota = &u.quota.Own
		}
		if err := e.cfg.Units.Allow(u.name, u.cpus, u.mems, quota); err != nil {
			e.untold, e.tellNext = err, now.Add(tellRetry)
			e.cfg.Log.Error("systemd is not told CPU sets", "unit", u.name, "error", err)
			break
		}
		e.untold = nil
		told[u.name] = u.String()
	}
	if e.untold != nil {
		out.Problems = append(out.Problems, topologyv1alpha1.Problem{Message: fmt.Sprintf(
			"systemd is not told the CPU sets, so when it reloads its configuration, it may overwrite them for up to a second: %v",
			e.untold)})
	}
}

func rank(u unit) int {
	if u.pinned {
		return 0
	}
	return 1
}

// untell lifts the restrictions of a pod's units.
func (e *Enforcer) untell(t apply.Target, quotas map[string]*desired.Quota) error {
	if e.cfg.Units == nil {
		return nil
	}
	for _, u := range unitsOf(t, nil, quotas) {
		if u.mems != nil {
			u.mems = &cpuset.Set{}
		}
		var quota *int64
		if u.quota != nil {
			quota = &u.quota.Kubelets
		}
		if err := e.cfg.Units.Allow(u.name, cpuset.Set{}, u.mems, quota); err != nil {
			return err
		}
	}
	return nil
}
