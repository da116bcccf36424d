package jobs

import (
	"time"

	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/series"
)

// What runs take, as measured on two cores with etcd on a disk. They are for estimates only.
const (
	// runTime is what a run takes besides its pods: a control plane starts, rests and stops.
	runTime = 18 * time.Second
	// podTime is the time for a pod of the load, from its creation until the next step may begin, and
	// floorTime that for a pod that the floor writes and deletes.
	podTime, floorTime = 4 * time.Millisecond, 5 * time.Millisecond
	// tryTime is what each writing of the floor takes besides its pods: pauses before and after.
	tryTime = 1500 * time.Millisecond
	// rateSteps is the number of steps of a search for a rate, each of which takes about as long again
	// until the system has caught up, and stepRest besides until everything is deleted.
	rateSteps = 16
	stepRest  = 15 * time.Second
	// runBytes is the disk that a fresh control plane takes: logs of etcd, which have a fixed size.
	runBytes = 200 << 20
	// podBytes is what a pod takes of it, through the load and each writing of the floor, and
	// resultBytes what its events and curves take in the results.
	podBytes, resultBytes = 16 << 10, 1 << 10
)

// estimate returns about what runs take: the time of all, the disk of the largest while it is made,
// and that of all results.
func estimate(trials []*trial) (e series.Estimate) {
	for _, t := range trials {
		if p := t.cfg.Pace; p != nil {
			steps := rateSteps * int(p.Search.Start*p.Search.Growth*p.StepTime.Seconds()) * t.shape.PodsPerJob
			e.Time += runTime + rateSteps*(2*p.StepTime+stepRest)
			e.ResultBytes += int64(steps) * resultBytes
			e.WorkBytes = max(e.WorkBytes, runBytes+int64(steps)*podBytes)
			continue
		}
		pods := t.pods()
		warmUp := 2 * min(t.cfg.WarmUpPods, pods)
		byFloor := 0 // pods that are written for the floor
		e.Time += runTime + time.Duration(pods+warmUp)*podTime
		if t.cfg.Kubeconfig == "" && len(t.cfg.FloorConcurrency) > 0 {
			orders := len(floor.Orders(t.jobs()))
			largest := 0
			byFloor = t.cfg.FloorTries*pods + orders*pods/orderShare
			for _, n := range t.cfg.FloorConcurrency {
				sample := min(pods, max(sampleSize, samplePerFlight*n))
				byFloor, largest = byFloor+sample, max(largest, sample)
			}
			byFloor += floor.Finalists * largest
			tries := t.cfg.FloorTries + orders + len(t.cfg.FloorConcurrency) + floor.Finalists
			e.Time += time.Duration(byFloor)*floorTime + time.Duration(tries)*tryTime
		}
		e.ResultBytes += int64(pods) * resultBytes
		if t.cfg.Kubeconfig == "" {
			e.WorkBytes = max(e.WorkBytes, runBytes+int64(pods+warmUp+byFloor)*podBytes)
		}
	}
	e.Runs = len(trials)
	return e
}

// afford says what the runs take, and refuses them if the disk has less. The discarded runs are like
// the first.
func (c *Config) afford(trials []*trial, discarded int) error {
	all := trials
	for range discarded {
		all = append([]*trial{trials[0]}, all...)
	}
	return c.Afford(estimate(all))
}
