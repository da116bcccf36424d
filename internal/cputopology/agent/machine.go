package agent

import (
	"bytes"
	"io/fs"
	"time"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
	"lockstep.dev/lockstep/internal/cputopology/sysfs"
)

// machine is the state read from sysfs. A complete read takes thousands of files, so it is done
// when the set of online CPUs changes, and every machineInterval.
type machine struct {
	root fs.FS

	topology *cputopology.Topology
	layout   *allocate.Layout
	reserved cpuset.Set // of the layout
	online   []byte
	next     time.Time
}

const (
	onlineFile = "sys/devices/system/cpu/online"
	// machineInterval is the interval between complete reads: memory may be added while a machine
	// runs.
	machineInterval = 10 * time.Minute
)

// refresh reads what may have changed, and reports whether anything has.
func (m *machine) refresh(now time.Time) (bool, error) {
	online, err := fs.ReadFile(m.root, onlineFile)
	if err != nil {
		return false, err
	}
	if m.topology != nil && bytes.Equal(online, m.online) && now.Before(m.next) {
		return false, nil
	}
	topology, err := sysfs.Read(m.root)
	if err != nil {
		return false, err
	}
	m.online, m.next = online, now.Add(machineInterval)
	if m.topology != nil && m.topology.Hash() == topology.Hash() {
		return false, nil
	}
	m.topology = topology
	return true, nil
}

// reserve computes the layout of the machine with these reserved CPUs, and reports whether it has
// changed.
func (m *machine) reserve(r reservation.Reserve) (bool, error) {
	reserved := r.Of(m.topology)
	if m.layout != nil && m.layout.Topology() == m.topology && m.reserved.Equal(reserved) {
		return false, nil
	}
	layout, err := allocate.NewLayout(m.topology, reserved)
	if err != nil {
		return false, err
	}
	m.layout, m.reserved = layout, reserved
	return true, nil
}
