package localcluster

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// ComponentStatus is the status of one component.
type ComponentStatus struct {
	Name    Component `json:"name"`
	Running bool      `json:"running"`
	// PID and StartTicks together identify the process; StartTicks is in the kernel's clock ticks
	// since boot.
	PID        int        `json:"pid,omitempty"`
	StartTicks StartTicks `json:"startTicks,omitempty"`
	StartedAt  time.Time  `json:"startedAt,omitzero"`
	Port       int        `json:"port"`
	// Restarts counts the runs after the first; LastExit describes how the last ended run ended.
	Restarts int    `json:"restarts"`
	LastExit string `json:"lastExit,omitempty"`
	Log      string `json:"log"`

	// CPUSeconds is user and system time over all runs. RSSBytes is the resident memory now,
	// PeakRSSBytes its peak.
	CPUSeconds   float64 `json:"cpuSeconds"`
	RSSBytes     int64   `json:"rssBytes"`
	PeakRSSBytes int64   `json:"peakRSSBytes"`
	// PastCPUSeconds is the part of CPUSeconds that belongs to ended runs.
	PastCPUSeconds float64 `json:"pastCPUSeconds"`

	Healthy bool `json:"healthy"`
	// Health says what is wrong if the component is not healthy.
	Health string `json:"health,omitempty"`
}

// PID returns the process ID of a component, and false if the component is not running.
func (c *Cluster) PID(name Component) (int, bool) {
	comp := c.components[name]
	if comp == nil {
		return 0, false
	}
	comp.lock.Lock()
	defer comp.lock.Unlock()
	if !comp.proc.running() {
		return 0, false
	}
	return comp.proc.pid, true
}

// Usage returns the usage of a component so far, over all its runs.
func (c *Cluster) Usage(name Component) (Usage, error) {
	comp := c.components[name]
	if comp == nil {
		return Usage{}, fmt.Errorf("%s is not part of this cluster", name)
	}
	comp.lock.Lock()
	defer comp.lock.Unlock()
	if comp.proc == nil {
		return comp.past, nil
	}
	now, err := comp.proc.current()
	if err != nil {
		return comp.past, err
	}
	return comp.past.add(now), nil
}

// Status returns the status of the components without health checks; Refresh makes these.
func (c *Cluster) Status() []ComponentStatus {
	var list []ComponentStatus
	for _, name := range c.Components() {
		comp := c.components[name]
		comp.lock.Lock()
		s := ComponentStatus{
			Name: name, Port: c.ports[name].port, Restarts: comp.restarts, LastExit: comp.lastExit, Log: c.files.log(name),
			StartedAt: comp.startedAt, PastCPUSeconds: comp.past.CPU.Seconds(), PeakRSSBytes: comp.past.PeakRSSBytes,
		}
		s.CPUSeconds = s.PastCPUSeconds
		switch {
		case comp.proc.running():
			s.Running, s.PID, s.StartTicks = true, comp.proc.pid, comp.proc.started
		case comp.proc != nil:
			s.CPUSeconds += comp.proc.usage.CPU.Seconds()
		}
		comp.lock.Unlock()
		list = append(list, s)
	}
	return list
}

// Refresh updates the status of the cluster in dir, from any process of the same user: it reads the
// usage of the processes and checks the health of each component.
func Refresh(ctx context.Context, dir string, nodes int, list []ComponentStatus) error {
	files := layout{dir}
	kc, err := clientcmd.LoadFromFile(files.kubeconfig("admin"))
	if err != nil {
		return err
	}
	user := kc.AuthInfos[kc.CurrentContext]
	if user == nil {
		return fmt.Errorf("%s: no user %s", files.kubeconfig("admin"), kc.CurrentContext)
	}
	probe, err := newProber(files, user.Token)
	if err != nil {
		return err
	}
	for i := range list {
		s := &list[i]
		s.Running = s.PID != 0 && Alive(s.PID, s.StartTicks)
		s.RSSBytes = 0
		if !s.Running {
			s.Healthy, s.Health = false, "not running"
			continue
		}
		if u, err := processUsage(s.PID); err == nil {
			s.CPUSeconds = s.PastCPUSeconds + u.CPU.Seconds()
			s.RSSBytes = u.RSSBytes
			s.PeakRSSBytes = max(s.PeakRSSBytes, u.PeakRSSBytes)
		}
		s.Healthy, s.Health = true, ""
		if err := probe.healthy(ctx, s.Name, s.Port, nodes); err != nil {
			s.Healthy, s.Health = false, err.Error()
		}
	}
	return nil
}
