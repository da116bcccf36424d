package rig

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/localcluster"
)

// Observed is a control plane with a client that drives the load, and a log of all writes.
type Observed struct {
	*Rig   // nil for a control plane that is not of this measurement
	REST   *rest.Config
	Client *drive.Client
	Log    observe.Log
	// MetricsURLs are the addresses of the metrics of further processes, by name.
	MetricsURLs map[string]string
}

// Observe starts a control plane like Start; jobs is the resource of the load.
func Observe(ctx context.Context, cfg localcluster.Config, outDir string, jobs schema.GroupVersionResource, starting func(localcluster.Component)) (*Observed, error) {
	r, err := Start(ctx, cfg, outDir, starting)
	if err != nil {
		return nil, err
	}
	o := &Observed{Rig: r, REST: r.RESTConfig()}
	if o.Client, err = drive.New(o.REST, jobs); err != nil {
		return nil, errors.Join(err, o.Stop(ctx, true))
	}
	audit, err := observe.ConsumeAudit(r.AuditLogPath())
	if err != nil {
		return nil, errors.Join(err, o.Stop(ctx, true))
	}
	o.Log.Source, o.Log.Broken = audit, r.Broken
	return o, nil
}

// Stop closes the log and then stops the control plane, see Rig.Stop.
func (o *Observed) Stop(ctx context.Context, failed bool) error {
	err := o.Log.Close()
	if o.Rig != nil {
		err = errors.Join(err, o.Rig.Stop(ctx, failed))
	}
	return err
}

// Used is the resource usage of each process between two calls of Usages.
type Used struct {
	CPUSeconds map[string]float64 `json:"cpuSeconds"`
	// RSSMiB is the resident memory at the second call, AnonMiB its part without pages of files,
	// PeakMiB the process's peak until then.
	RSSMiB  map[string]float64 `json:"rssMiB"`
	AnonMiB map[string]float64 `json:"anonMiB"`
	PeakMiB map[string]float64 `json:"peakRSSMiB"`
}

// UsedBetween returns the usage between two results of Usages.
func UsedBetween(before, after map[localcluster.Component]localcluster.Usage) Used {
	used := Used{CPUSeconds: map[string]float64{}, RSSMiB: map[string]float64{}, AnonMiB: map[string]float64{}, PeakMiB: map[string]float64{}}
	for c, u := range after {
		used.CPUSeconds[string(c)] = analyse.Round((u.CPU - before[c].CPU).Seconds(), 2)
		if u.PeakRSSBytes > 0 {
			used.RSSMiB[string(c)], used.AnonMiB[string(c)], used.PeakMiB[string(c)] = mib(u.RSSBytes), mib(u.AnonBytes), mib(u.PeakRSSBytes)
		}
	}
	return used
}

func mib(bytes int64) float64 { return analyse.Round(float64(bytes)/(1<<20), 2) }
