package sandbox

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"syscall"
	"time"

	"lockstep.dev/lockstep/internal/race"
)

// Evaluator answers a request. It runs in a child, one request at a time. It may cache compiled
// programs between requests, but must not depend on the cache.
type Evaluator func(ctx context.Context, request []byte) ([]byte, error)

// Table maps names to the evaluators of a program.
type Table map[string]Evaluator

// childName is the program name, argv[0], of children.
const childName = "lockstep-evaluator"

// mainCalled is set if this program can be started as a child. Without it, a child would run the
// program itself.
var mainCalled atomic.Bool

// Main serves evaluations, and does not return, in a process that a Pool has started. In other
// processes it returns at once. main, and TestMain of tests with a pool, must call it before
// anything else.
func Main(table Table) {
	mainCalled.Store(true)
	if len(os.Args) != 2 || os.Args[0] != childName {
		return
	}
	if err := serve(table, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve answers requests on standard input until its end.
func serve(table Table, settings string) error {
	var limits Limits
	if err := json.Unmarshal([]byte(settings), &limits); err != nil {
		return err
	}
	runtime.GOMAXPROCS(1)
	// Plain blocking descriptors: the runtime's poller is not involved.
	for _, fd := range []int{0, 1} {
		if err := syscall.SetNonblock(fd, false); err != nil {
			return err
		}
	}
	in, out := pipe(0), pipe(1)
	weight := newWeight()
	time.Sleep(time.Microsecond) // timers need descriptors, which cannot be opened later
	missing := restrict(&limits)
	if err := writeFrame(out, frameHello, []byte(missing)); err != nil {
		return err
	}
	for {
		kind, payload, err := readFrame(in, limits.RequestBytesMax+256)
		if err != nil || kind != frameRequest || len(payload) == 0 || len(payload) < 1+int(payload[0]) {
			return nil // the parent has ended
		}
		began := limitCPU(limits.CPU)
		name := string(payload[1 : 1+payload[0]])
		response, kind := answer(table[name], name, payload[1+payload[0]:])
		if int64(len(response)) > limits.OutputBytesMax {
			response, kind = nil, frameTooLong
		}
		if err := writeFrame(out, kind, weight.now(), spent(began), response); err != nil || kind == framePanic {
			return err
		}
	}
}

// answer calls an evaluator.
func answer(f Evaluator, name string, request []byte) (response []byte, kind byte) {
	if f == nil {
		return fmt.Appendf(nil, "there is no evaluator %s", name), frameFailed
	}
	defer func() {
		if r := recover(); r != nil {
			response, kind = fmt.Append(nil, r), framePanic
		}
	}()
	out, err := f(context.Background(), request)
	if err != nil {
		return []byte(err.Error()), frameFailed
	}
	return out, frameDone
}

// pipe reads and writes a descriptor without the runtime's poller.
type pipe int

func (p pipe) Read(b []byte) (int, error) {
	return retry(func() (int, error) { return syscall.Read(int(p), b) }, true)
}
func (p pipe) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := retry(func() (int, error) { return syscall.Write(int(p), b[written:]) }, false)
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

func retry(f func() (int, error), eof bool) (int, error) {
	for {
		n, err := f()
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case n == 0 && eof:
			return 0, errEnd
		default:
			return n, nil
		}
	}
}

// softMemory sets the heap size above which the garbage collector works hardest, below the limit
// that ends the process. It also sets the stack limit and disables tracebacks.
func softMemory(limits *Limits) {
	debug.SetMemoryLimit(limits.MemoryBytes * 3 / 4 * race.Factor)
	debug.SetMaxStack(int(limits.StackBytes))
	debug.SetTraceback("none")
}

// spent returns the CPU time since began.
func spent(began time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(0, cpuTime()-began)))
}

// weight measures the memory that the runtime holds.
type weight [2]metrics.Sample

func newWeight() *weight {
	return &weight{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
}

func (w *weight) now() []byte {
	metrics.Read(w[:])
	return binary.BigEndian.AppendUint64(nil, w[0].Value.Uint64()-w[1].Value.Uint64())
}
