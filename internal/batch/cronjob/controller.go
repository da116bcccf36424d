package cronjob

import (
	"encoding/json"
	"errors"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cron"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

const kind = "CronJob"

// Config configures a Controller. Informers and Writer are required.
type Config struct {
	Informers *informer.Set
	Writer    apiwriter.Writer
	// Guard recovers from panics that one CronJob causes. With a nil Guard such panics end the
	// process.
	Guard *panics.Guard
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Controller creates Jobs on the schedules of CronJobs.
type Controller = cron.Controller[*api.CronJob, *api.Job]

// New creates a controller and registers its handlers, so it comes before the informers start.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Writer == nil {
		return nil, errors.New("cronjob: Informers and Writer are required")
	}
	return cron.New(cron.Config[*api.CronJob, *api.Job]{
		Name: "cronjobs", Prefix: "cronjob", Kind: kind,
		Crons: cfg.Informers.CronJobs, Runs: cfg.Informers.Jobs, Index: informer.JobsByController,
		Decide: func(t cron.Turn[*api.CronJob, *api.Job]) (cron.Plan[*api.CronJob], error) {
			return carryOut(cfg.Writer, t), nil
		},
		Made:   func(o apiwriter.Object) *api.Job { return o.(*api.Job) },
		Writer: cfg.Writer, Guard: cfg.Guard, Clock: cfg.Clock, Log: cfg.Log,
	})
}

// carryOut converts the plan for a CronJob to the writes that carry it out.
func carryOut(w apiwriter.Writer, t cron.Turn[*api.CronJob, *api.Job]) cron.Plan[*api.CronJob] {
	p := decide(t.Cron, t.Runs, t.Passed, t.Now)
	out := cron.Plan[*api.CronJob]{
		StatusOnly: true, Insist: true, Passed: p.passed, Skipped: p.skipped, Wake: p.wake,
		Started: func(created apiwriter.Object) { p.started(created.GetUID()) },
		Refused: func(err error) bool { return p.condition(api.CronJobCreated, api.ReasonRefused, err.Error(), t.Now) },
		Status:  func() ([]byte, *api.CronJob, error) { return p.patch(t.Cron) },
	}
	for _, old := range p.replace {
		out.Replace = append(out.Replace, func(m apiwriter.Meta, done func(apiwriter.Object, error)) {
			w.Delete(m, old, apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, func(err error) { done(nil, err) })
		})
	}
	for _, old := range p.remove {
		out.Remove = append(out.Remove, old)
	}
	if p.start != nil {
		out.Start = p.start
	}
	return out
}

// patch returns the patch that writes the status, and the CronJob after it, or nil if the CronJob
// has this status.
func (p *plan) patch(c *api.CronJob) ([]byte, *api.CronJob, error) {
	if equality.Semantic.DeepEqual(c.Status, p.status) {
		return nil, nil, nil
	}
	after := c.DeepCopy()
	after.Status = p.status
	s := map[string]any{"active": nil, "lastScheduleTime": nil, "lastSuccessfulTime": nil, "conditions": nil} // null removes
	data, err := json.Marshal(p.status)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil {
		data, err = json.Marshal(map[string]any{"status": s})
	}
	return data, after, err
}
