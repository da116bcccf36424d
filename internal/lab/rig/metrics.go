package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/metrics"
	"lockstep.dev/lockstep/internal/localcluster"
)

// sampleEvery is the interval of samples. A sample costs a few milliseconds of CPU time of each
// process with metrics.
const sampleEvery = time.Second

// metricsTimeout bounds one request for metrics.
const metricsTimeout = 5 * time.Second

// Metered calls work, and returns what the metrics of all processes say about the time that it
// took. A process whose metrics cannot be read is named in the figures; that is no error.
func (o *Observed) Metered(ctx context.Context, work func() error) (*metrics.Figures, error) {
	m := &meter{observed: o, missing: map[string]string{}, workers: map[string]map[string]metrics.Workers{}}
	before := m.pages(ctx, m.processes())
	m.began = time.Now()
	m.last, m.usage = m.began, m.usages()
	sampling, stop := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	sampler.Go(func() { m.sample(sampling) })
	err := work()
	stop()
	sampler.Wait()
	if err != nil {
		return nil, err
	}
	m.take(ctx)
	return metrics.Compute(before, m.pages(ctx, m.processes()), m.samples, m.workers, m.missing), nil
}

// Pages returns the metrics of all processes that have some.
func (o *Observed) Pages(ctx context.Context) map[string]metrics.Page {
	m := &meter{observed: o, missing: map[string]string{}}
	return m.pages(ctx, m.processes())
}

// meter reads the metrics of the processes of a measurement.
type meter struct {
	observed *Observed
	began    time.Time
	samples  []metrics.Sample
	workers  map[string]map[string]metrics.Workers
	// missing says why a process has no metrics.
	missing map[string]string
	// last is the time of the last sample, and usage the usage then.
	last  time.Time
	usage map[localcluster.Component]localcluster.Usage
}

// processes returns the names of the processes that may have metrics.
func (m *meter) processes() (out []string) {
	if m.observed.Rig == nil {
		out = append(out, metrics.APIServer)
	} else {
		for _, c := range m.observed.Components() {
			out = append(out, string(c))
		}
	}
	for name := range m.observed.MetricsURLs {
		out = append(out, name)
	}
	return out
}

// pages reads the metrics of processes.
func (m *meter) pages(ctx context.Context, processes []string) map[string]metrics.Page {
	out := map[string]metrics.Page{}
	for _, process := range processes {
		page, err := m.page(ctx, process)
		if err == nil {
			out[process] = page
		} else if !errors.Is(err, localcluster.ErrNoMetrics) && ctx.Err() == nil {
			m.missing[process] = err.Error()
		}
	}
	return out
}

func (m *meter) page(ctx context.Context, process string) (metrics.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	text, err := m.text(ctx, process)
	if err != nil {
		return nil, err
	}
	defer text.Close()
	return metrics.Parse(text)
}

func (m *meter) text(ctx context.Context, process string) (io.ReadCloser, error) {
	o := m.observed
	if url := o.MetricsURLs[process]; url != "" {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			return nil, fmt.Errorf("%s: %s", url, resp.Status)
		}
		return resp.Body, nil
	}
	if o.Rig != nil {
		return o.Metrics(ctx, localcluster.Component(process))
	}
	client, err := kubeclient.Clientset(o.REST)
	if err != nil {
		return nil, err
	}
	return client.Discovery().RESTClient().Get().AbsPath("/metrics").Stream(ctx)
}

// sample takes samples until ctx is done.
func (m *meter) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.take(ctx)
		}
	}
}

// take takes one sample. The API server and etcd have no queues to sample, and the longest texts.
func (m *meter) take(ctx context.Context) {
	now, usage := time.Now(), m.usages()
	passed := now.Sub(m.last).Seconds()
	if passed <= 0 {
		return
	}
	s := metrics.Sample{At: analyse.Round(now.Sub(m.began).Seconds(), 2), CPU: map[string]float64{}, RSSMiB: map[string]float64{}}
	for c, u := range usage {
		s.CPU[string(c)] = max(0, analyse.Round((u.CPU-m.usage[c].CPU).Seconds()/passed, 2))
		if u.RSSBytes > 0 {
			s.RSSMiB[string(c)] = mib(u.RSSBytes)
		}
	}
	m.last, m.usage = now, usage
	var processes []string
	for _, name := range m.processes() {
		if name != metrics.APIServer && name != metrics.EtcdName {
			processes = append(processes, name)
		}
	}
	for process, page := range m.pages(ctx, processes) {
		for queue, depth := range page.Depths() {
			if s.Depths == nil {
				s.Depths = map[string]int{}
			}
			s.Depths[process+"/"+queue] = depth
		}
		if most := page.Busy(m.workers[process]); most != nil {
			m.workers[process] = most
		}
	}
	m.samples = append(m.samples, s)
}

// usages returns the usage of each process; what cannot be read is left out of the sample.
func (m *meter) usages() map[localcluster.Component]localcluster.Usage {
	out, err := m.observed.Usages()
	if err != nil {
		return map[localcluster.Component]localcluster.Usage{}
	}
	return out
}
