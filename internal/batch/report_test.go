package batch

import (
	"slices"
	"testing"
	"time"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestCountsAreWrittenOnceTheyRest follows a job's record while its pods start to run one after the
// other.
func TestCountsAreWrittenOnceTheyRest(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		lag, gap time.Duration // duration of a write, and time between the starts of two pods
		pods     int32
		writes   int32
	}{
		"all at once":                     {gap: 0, pods: 20, writes: 1},
		"quickly":                         {gap: 100 * time.Millisecond, pods: 20, writes: 1},
		"with pauses":                     {gap: 2 * time.Second, pods: 3, writes: 1},
		"slowly, as images are pulled":    {gap: 20 * time.Second, pods: 3, writes: 3},
		"for long: now and then all same": {gap: time.Second, pods: 11, writes: 2},
		"on a busy server":                {lag: time.Second, gap: time.Second, pods: 11, writes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := &record{}
			r.status.State.Phase = api.Running
			r.status.Pending = c.pods
			r.statusSeen = countsOf(&r.status)
			writes, next := int32(0), r.status
			const tick = 50 * time.Millisecond
			for at := time.Duration(0); at <= time.Duration(c.pods)*c.gap+10*time.Second; at += tick {
				running := c.pods
				if c.gap > 0 {
					running = min(c.pods, int32(at/c.gap))
				}
				next.Running, next.Pending = running, c.pods-running
				now := begin.Add(at)
				wait, worth := r.worthWriting(&next, now, settleFor(c.lag))
				if !worth {
					r.statusSince = time.Time{}
				} else if wait <= 0 {
					writes++
					r.status, r.statusSince = next, time.Time{}
				}
			}
			if writes != c.writes || r.status.Running != c.pods {
				t.Errorf("%d writes, the last one says that %d run; want %d and %d", writes, r.status.Running, c.writes, c.pods)
			}
		})
	}
}

// TestAJobWhosePodsTakeLongToStartSaysThatItIsPending follows a job whose pods have nodes and pull
// their images.
func TestAJobWhosePodsTakeLongToStartSaysThatItIsPending(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		runs   time.Duration // time after which the job's pods run
		phases []api.JobPhase
	}{
		"soon":  {20 * time.Second, []api.JobPhase{api.Running}},
		"later": {90 * time.Second, []api.JobPhase{api.Pending, api.Running}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &record{}
			var phases []api.JobPhase
			for at := time.Duration(0); at <= 2*time.Minute; at += 50 * time.Millisecond {
				next := r.status
				next.State.Phase, next.Pending, next.Running = api.Pending, 3, 0
				if at >= c.runs {
					next.State.Phase, next.Pending, next.Running = api.Running, 0, 3
				}
				if wait, worth := r.worthWriting(&next, begin.Add(at), settleMin); !worth {
					r.statusSince = time.Time{}
				} else if wait <= 0 {
					phases = append(phases, next.State.Phase)
					r.status, r.statusSince = next, time.Time{}
				}
			}
			if !slices.Equal(phases, c.phases) {
				t.Errorf("written: %v, want %v", phases, c.phases)
			}
		})
	}
}
