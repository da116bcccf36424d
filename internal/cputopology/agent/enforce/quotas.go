package enforce

import (
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/agent/apply"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
)

// quotaFailure is the reason why a pod's quotas could not be written.
type quotaFailure struct {
	problem topologyv1alpha1.Problem
	next    time.Time // of the next try
}

// quotaRetry is the time after which quotas that could not be written are tried again.
const quotaRetry = 30 * time.Second

// quotaTarget returns the quotas of a pod, or false if the agent has no business with them. A pod that
// is not on its CPUs has those of the kubelet.
func quotaTarget(t apply.Target, quotas map[string]*desired.Quota, own bool) (apply.QuotaTarget, bool) {
	pod := quotas[t.Pod.Path]
	if pod == nil {
		return apply.QuotaTarget{}, false
	}
	of := func(q *desired.Quota) int64 {
		if own {
			return q.Own
		}
		return q.Kubelets
	}
	out := apply.QuotaTarget{Path: t.Pod.Path, Pod: of(pod), Leaves: map[string]int64{}}
	for _, leaf := range t.Pod.Leaves {
		if q := quotas[leaf.Path]; q != nil {
			out.Leaves[leaf.Path] = of(q)
		}
	}
	return out, true
}

// setQuotas writes the quotas of the pods whose CPU sets were applied, after these: a container
// without a quota must not run on CPUs of others. A pod that has lost its CPUs gets the kubelet's
// quotas back, unless the kubelet has pinned it meanwhile.
func (e *Enforcer) setQuotas(targets []apply.Target, quotas map[string]*desired.Quota, kubelet desired.Kubelet, now time.Time,
	out *Outcome) {
	if e.cfg.Quotas.Files == nil || e.cfg.Observe {
		return
	}
	failing, lifted := map[string]quotaFailure{}, map[string]apply.QuotaTarget{}
	for _, t := range targets {
		uid := t.Pod.UID
		want, known := quotaTarget(t, quotas, e.failing[uid] == nil)
		back := !known
		if back {
			if want, known = e.lifted[uid]; !known || len(kubelet.Pins[uid]) > 0 {
				continue
			}
			// systemd is told, too.
			quotas[want.Path] = &desired.Quota{Own: want.Pod, Kubelets: want.Pod}
			for dir, milli := range want.Leaves {
				quotas[dir] = &desired.Quota{Own: milli, Kubelets: milli}
			}
		} else {
			lifted[uid], _ = quotaTarget(t, quotas, false)
		}
		f, failed := e.quotaFailures[uid]
		if !failed || !now.Before(f.next) {
			writes := 0
			err := e.contained(t.Pod, func() (err error) {
				writes, err = apply.SetQuotas(e.cfg.Quotas, want)
				return err
			})
			out.Writes += writes
			if failed = err != nil; failed {
				f = quotaFailure{topologyv1alpha1.Problem{Pod: e.podName(uid), Message: "its CFS quota cannot be changed: " + err.Error()},
					now.Add(quotaRetry)}
			}
		}
		if failed {
			if failing[uid] = f; back {
				lifted[uid] = want
			}
			out.Problems = append(out.Problems, f.problem)
		}
	}
	e.quotaFailures, e.lifted = failing, lifted
}
