package jobs

import (
	"context"
	"fmt"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/system"
)

// drive creates a load's jobs, part after part, and follows the events until all pods have nodes or
// the timeout expires. It returns the number of pods that have nodes.
func (t *trial) drive(ctx context.Context, namespace, stage string, parts []part) (int, error) {
	pods := 0
	var jobs [][]drive.Object
	index := 0
	for _, p := range parts {
		made, err := t.makeJobs(namespace, p, index)
		if err != nil {
			return 0, err
		}
		jobs, index, pods = append(jobs, made), index+p.Jobs, pods+p.Pods()
	}
	t.enter(stage, pods)
	sending, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	submitted := make(chan error, 1)
	go func() {
		for _, made := range jobs {
			err := t.Client.Submit(sending, len(made), t.cfg.ClientConcurrency, func(i int) drive.Object { return made[i] }, func(int) {})
			if err != nil {
				submitted <- err
				return
			}
		}
		submitted <- nil
	}()
	scheduled := map[string]bool{}
	seen := len(t.Log.Events)
	allSubmitted := false
	_, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
		select {
		case err := <-submitted:
			if err != nil && sending.Err() == nil {
				return false, err
			}
			allSubmitted = true
		default:
		}
		for ; seen < len(t.Log.Events); seen++ {
			e := &t.Log.Events[seen]
			if t.isPod(e, namespace) && e.Node != "" {
				scheduled[e.Name] = true
			}
		}
		t.count(len(scheduled), pods)
		return allSubmitted && len(scheduled) >= pods, nil
	})
	cancel()
	return len(scheduled), err
}

// isPod reports whether the event is a write to a pod of the load that succeeded.
func (t *trial) isPod(e *analyse.Event, namespace string) bool {
	return e.Resource == "pods" && e.Namespace == namespace && e.OK() && t.sys.OfLoad(e.Name)
}

// makeJobs makes the jobs of one part, of which the first is the index-th of the load.
func (t *trial) makeJobs(namespace string, p part, index int) ([]drive.Object, error) {
	out := make([]drive.Object, p.Jobs)
	for i := range out {
		job := system.Job{Namespace: namespace, Name: scenario.JobName(index + i), Index: index + i, Pods: p.PodsPerJob, Gang: t.gang, PodTime: t.cfg.PodTime}
		if p.Weight > 0 {
			job.Queue = p.Name
		}
		var err error
		if out[i], err = t.sys.NewJob(job); err != nil {
			return nil, fmt.Errorf("job %s: %w", job.Name, err)
		}
	}
	return out, nil
}

// createQueues creates the queues of the load, if the system has queues.
func (t *trial) createQueues(ctx context.Context) error {
	for _, p := range t.parts() {
		if p.Weight == 0 {
			continue
		}
		queue, resource := t.sys.NewQueue(p.Name, p.Weight)
		if queue == nil {
			return nil
		}
		client, err := drive.New(t.REST, resource)
		if err != nil {
			return err
		}
		if err := client.CreateJob(ctx, queue, queue.DeepCopyObject().(drive.Object)); err != nil {
			return fmt.Errorf("queue %s: %w", p.Name, err)
		}
	}
	return nil
}

// ended waits until the nodes have reported the end of every pod, if pods end.
func (t *trial) ended(ctx context.Context, namespace string) error {
	if t.cfg.PodTime == 0 {
		return nil
	}
	reports := map[string]int{}
	seen, ended := 0, 0
	_, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
		for ; seen < len(t.Log.Events); seen++ {
			e := &t.Log.Events[seen]
			if !t.isPod(e, namespace) || e.Sub != "status" || e.Actor != observe.Nodes {
				continue
			}
			// A node writes twice: that the pod runs, and that it has ended.
			if reports[e.Name]++; reports[e.Name] == 2 {
				ended++
			}
		}
		return ended >= t.pods(), nil
	})
	return err
}
