package cpus

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// perf is the open counters of the calling thread. nil has none.
type perf struct{ llc, remote int }

// Cache events of perf: the memory of other NUMA nodes, loads, misses.
const nodeLoadMisses = unix.PERF_COUNT_HW_CACHE_NODE | unix.PERF_COUNT_HW_CACHE_OP_READ<<8 |
	unix.PERF_COUNT_HW_CACHE_RESULT_MISS<<16

// openPerf starts the counters of the calling thread. It returns nil where they cannot be read.
func openPerf() *perf {
	open := func(kind uint32, config uint64) int {
		attr := &unix.PerfEventAttr{Type: kind, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: config,
			Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
		fd, err := unix.PerfEventOpen(attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return -1
		}
		return fd
	}
	p := &perf{open(unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_MISSES), open(unix.PERF_TYPE_HW_CACHE, nodeLoadMisses)}
	if p.llc < 0 && p.remote < 0 {
		return nil
	}
	return p
}

// close ends the counters and returns what they have counted.
func (p *perf) close() (c counters) {
	if p == nil {
		return c
	}
	read := func(fd int) (float64, bool) {
		if fd < 0 {
			return 0, false
		}
		defer unix.Close(fd)
		var buf [8]byte
		n, err := unix.Read(fd, buf[:])
		return float64(binary.NativeEndian.Uint64(buf[:])), err == nil && n == len(buf)
	}
	c.llcMisses, c.known = read(p.llc)
	c.remoteMisses, c.remoteKnown = read(p.remote)
	return c
}
