package cpus

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// counters are what the processor counted of threads, if it lets them be read: not in most virtual
// machines, and not under kernel.perf_event_paranoid above 2 without the capability.
type counters struct {
	known                    bool
	llcMisses, remoteMisses  float64
	remoteKnown              bool
	threads, threadsWithInfo int
}

func (c *counters) add(o counters) {
	c.threads++
	if !o.known {
		return
	}
	c.known = true
	c.threadsWithInfo++
	c.llcMisses += o.llcMisses
	c.remoteKnown = c.remoteKnown || o.remoteKnown
	c.remoteMisses += o.remoteMisses
}

// report sets the misses for each unit of work, if they are known of all threads.
func (c *counters) report(out *Result, units float64) {
	if !c.known || c.threadsWithInfo < c.threads || units == 0 {
		return
	}
	misses := c.llcMisses / units
	out.LLCMisses = &misses
	if c.remoteKnown {
		remote := c.remoteMisses / units
		out.RemoteLoads = &remote
	}
}

// throttled returns how long the processes of the own cgroup have been kept from running by their
// CFS quota. It is not known outside of a container, or where cgroups are not mounted.
func throttled() (time.Duration, bool) {
	for _, f := range []struct {
		name, key string
		unit      time.Duration
	}{{"/sys/fs/cgroup/cpu.stat", "throttled_usec", time.Microsecond},
		{"/sys/fs/cgroup/cpu/cpu.stat", "throttled_time", time.Nanosecond},
		{"/sys/fs/cgroup/cpu,cpuacct/cpu.stat", "throttled_time", time.Nanosecond}} {
		data, err := os.ReadFile(f.name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), f.key+" "); ok {
				n, err := strconv.ParseInt(value, 10, 64)
				return time.Duration(n) * f.unit, err == nil
			}
		}
	}
	return 0, false
}
