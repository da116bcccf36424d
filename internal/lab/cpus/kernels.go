package cpus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Kernel is a small program that feels which CPUs it has. Each of its threads does the same work.
type Kernel string

// The kernels.
const (
	// Chase follows a random cycle of pointers through memory that all threads share: each step is a
	// load that waits for the one before. It is as fast as the memory or cache that holds the cycle.
	Chase Kernel = "chase"
	// Hash reads and writes random keys of hash tables, one table for each thread, as servers of
	// keys and values do.
	Hash Kernel = "hash"
	// Share lets all threads change and read the same few cache lines.
	Share Kernel = "share"
	// Stream reads two arrays and writes a third (STREAM's triad). It is as fast as the memory, and
	// it evicts what its neighbours have in the caches that they share with it.
	Stream Kernel = "stream"
)

// Kernels are all kernels.
var Kernels = []Kernel{Chase, Hash, Share, Stream}

const (
	lineBytes   = 64
	chaseSteps  = 4096 // a measured step of Chase
	hashSteps   = 64
	shareSteps  = 1024
	sharedLines = 16
	valueBytes  = 128
	// streamBlock is the number of elements between two looks at the clock.
	streamBlock = 1 << 16
)

// workBytesMax bounds the memory of a kernel.
const workBytesMax = 16 << 30

// RunKernel runs a kernel for duration, in threads that each have their own thread of the operating
// system. bytes is the memory that they use together.
func RunKernel(ctx context.Context, kernel Kernel, bytes, threads int, duration time.Duration) (Result, error) {
	if threads < 1 || bytes < threads*lineBytes*16 || bytes > workBytesMax {
		return Result{}, fmt.Errorf("a kernel needs a thread, and 1 kB to 16 GiB for each: %d threads, %d bytes", threads, bytes)
	}
	var step func(thread int) func() (done float64)
	switch kernel {
	case Chase:
		step = chase(bytes)
	case Hash:
		step = hashes(bytes / threads)
	case Share:
		step = share()
	case Stream:
		step = stream(bytes / threads)
	default:
		return Result{}, fmt.Errorf("kernel %q: there are %v", kernel, Kernels)
	}
	runtime.GOMAXPROCS(threads + 1)
	where, err := allowed()
	if err != nil {
		return Result{}, err
	}
	var times histogram
	var lock sync.Mutex
	var sum float64
	var counted counters
	var running, ready sync.WaitGroup
	ready.Add(threads)
	start := make(chan struct{})
	before := time.Now()
	for i := range threads {
		running.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			next := step(i)
			ready.Done()
			<-start
			done, c := drive(ctx, next, before, duration, &times)
			lock.Lock()
			defer lock.Unlock()
			sum += done
			counted.add(c)
		})
	}
	ready.Wait()
	before = time.Now().Add(warmUp)
	throttledBefore, known := throttled()
	close(start)
	running.Wait()
	out := Result{PerSecond: sum / duration.Seconds(), P50Ms: times.quantile(0.5), P99Ms: times.quantile(0.99), Allowed: where}
	if after, ok := throttled(); ok && known {
		ms := float64((after - throttledBefore).Microseconds()) / 1e3
		out.ThrottledMs = &ms
	}
	counted.report(&out, sum)
	return out, errors.Join(ctx.Err())
}

// drive repeats a step until duration after began, and measures the steps since began.
func drive(ctx context.Context, next func() float64, began time.Time, duration time.Duration, times *histogram) (float64, counters) {
	done := 0.0
	var open *perf
	end := began.Add(duration)
	for now := time.Now(); now.Before(end) && ctx.Err() == nil; {
		if open == nil && !now.Before(began) {
			open = openPerf()
		}
		n := next()
		then := time.Now()
		if !now.Before(began) {
			done += n
			times.add(then.Sub(now))
		}
		now = then
	}
	return done, open.close()
}

// chase returns the steps of Chase: a cycle through all lines of a memory, which each thread enters
// at another place. A unit is one load.
func chase(bytes int) func(int) func() float64 {
	type line struct {
		next uint32
		_    [lineBytes - 4]byte
	}
	lines := make([]line, bytes/lineBytes)
	for i, next := range chaseOrder(len(lines)) {
		lines[i].next = next
	}
	return func(thread int) func() float64 {
		at := lines[thread*977%len(lines)].next
		return func() float64 {
			for range chaseSteps {
				at = lines[at].next
			}
			return chaseSteps
		}
	}
}

// chaseOrder returns, for each line, the next of a random cycle through all lines.
func chaseOrder(lines int) []uint32 {
	next := make([]uint32, lines)
	order := rand.New(rand.NewPCG(1, 0)).Perm(lines)
	for i, at := range order {
		next[at] = uint32(order[(i+1)%lines])
	}
	return next
}

// hashes returns the steps of Hash. One of ten operations writes. A unit is one operation.
func hashes(bytes int) func(int) func() float64 {
	return func(thread int) func() float64 {
		keys := bytes / (valueBytes + 32) // with what a table needs for an entry
		table := make(map[uint64]*[valueBytes]byte, keys)
		for k := range uint64(keys) {
			table[k*0x9e3779b97f4a7c15] = &[valueBytes]byte{byte(k)}
		}
		random := rand.New(rand.NewPCG(uint64(thread), 1))
		var kept byte
		return func() float64 {
			for range hashSteps {
				key := random.Uint64N(uint64(keys)) * 0x9e3779b97f4a7c15
				value := table[key]
				if random.Uint32()%10 == 0 {
					value[kept%valueBytes]++
					value[valueBytes-1] = kept
				} else {
					kept += value[0] + value[valueBytes-1]
				}
			}
			return hashSteps
		}
	}
}

// share returns the steps of Share. A unit is one change of a line.
func share() func(int) func() float64 {
	type line struct {
		n atomic.Uint64
		_ [lineBytes - 8]byte
	}
	lines := make([]line, sharedLines)
	return func(thread int) func() float64 {
		at := thread
		return func() float64 {
			for range shareSteps {
				at = (at + int(lines[at%sharedLines].n.Add(1)%3) + 1) % sharedLines
			}
			return shareSteps
		}
	}
}

// stream returns the steps of Stream. A unit is one byte read or written.
func stream(bytes int) func(int) func() float64 {
	return func(int) func() float64 {
		n := bytes / 24
		a, b, c := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range b {
			a[i], b[i], c[i] = 0, float64(i), 2
		}
		at := 0
		return func() float64 {
			end := min(at+streamBlock, n)
			x, y, z := a[at:end], b[at:end], c[at:end]
			for i := range x {
				x[i] = y[i] + 3*z[i]
			}
			done := float64(24 * (end - at))
			if at = end; at == n {
				at = 0
			}
			return done
		}
	}
}
