package contain

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// module is the path that begins the names of this module's functions.
const module = "lockstep.dev/lockstep/"

// shared are the functions, by the beginning of their names, that change what all objects share: a panic in one of them, or in
// what they call, may leave it half-changed or locked.
var shared = []string{
	// The model of the cluster, the caches, and the queues of keys.
	"internal/cluster.(*Cluster)", "internal/cluster.(*apart[", "internal/cluster.(*specs)",
	"internal/cluster.(*Kind[...]).put", "internal/cluster.(*Kind[...]).replace", "internal/cluster.(*Kind[...]).setApart",
	"internal/keyed.(*delays[", "internal/keyed.(*entry[", "internal/keyed.(*Loop[...]).post", "internal/keyed.(*Loop[...]).Put",
	// What waits for room, and what queues hold.
	"internal/scheduler.(*Scheduler).Submit", "internal/scheduler.(*Scheduler).Withdraw", "internal/scheduler.(*Scheduler).Move",
	"internal/scheduler.(*room)", "internal/scheduler/share.", "internal/scheduler/pin.(*Pinner).Grant",
	// The writer's queues and pace.
	"internal/apiwriter.",
	// Plans, locks, caches and slots of all jobs or workflows.
	"internal/batch/pods.(*Plans)", "internal/batch.(*keyring)", "internal/workflow/locks.",
	"internal/workflow/controller.(*lockKeeper)", "internal/workflow/controller.(*caches)",
	"internal/workflow/controller.(*slots)", "internal/workflow/controller.(*samples)", "internal/workflow/controller.(*takeover)",
	"internal/workflow/controller.(*awaited)", "internal/workflow/controller.(*former)", "internal/workflow/controller.(*estimates)",
	// What applications share.
	"internal/application/controller.(*gate)", "internal/application/controller.(*live)", "internal/application/controller.(*spies)",
	"internal/application/controller.(*targets)", "internal/application/controller.(*definitions)",
	"internal/application/controller.(*evaluators)", "internal/application/charts.(*Store)", "internal/application/clusters.(*Registry)",
	"internal/application/plan.(*Memo)",
}

// Shared are the functions in which a panic ends the process, by the beginning of their names.
func Shared() []string { return slices.Clone(shared) }

// Panic is a panic that was recovered from.
type Panic struct {
	// Where is the function that panicked.
	Where string
	// What is the message of a runtime error, else empty: other values of panics may hold what only some may read, such as a part
	// of a Secret. They are neither returned nor logged.
	What string
	// Type is the Go type of the panic's value.
	Type string
	// Stack is the goroutine's at the panic.
	Stack []byte
}

// Error implements error. It holds nothing that differs from one time to the next.
func (p *Panic) Error() string { return "the manager failed in " + p.Reason() }

// Reason is where it was and, if that may be said, what.
func (p *Panic) Reason() string {
	if p.What == "" {
		return p.Where
	}
	return p.Where + ": " + p.What
}

// unsafe is a panic that must end the process.
type unsafe struct {
	panic *Panic
	in    string
}

// Error implements error. The process ends with this text in its log.
func (u *unsafe) Error() string {
	return fmt.Sprintf("a panic (%s) in %s: %s may have left half-changed what all objects share, so the process ends; it happened at\n%s",
		u.panic.Type, u.panic.Reason(), u.in, u.panic.Stack)
}

// Guard recovers from panics, logs and counts them. A nil Guard does nothing: what panics ends the process.
type Guard struct {
	log    *slog.Logger
	panics *prometheus.CounterVec
}

// New returns a Guard. registry may be nil.
func New(log *slog.Logger, registry prometheus.Registerer) (*Guard, error) {
	g := &Guard{log: log, panics: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_panics_total",
		Help: "Panics that one object caused and that the process recovered from, by the part of the process.",
	}, []string{"part"})}
	if registry != nil {
		if err := registry.Register(g.panics); err != nil {
			return nil, fmt.Errorf("contain: %w", err)
		}
	}
	return g, nil
}

// Try runs do on behalf of the object under key. It returns the panic that do ended with, or nil.
func (g *Guard) Try(part string, key fmt.Stringer, do func()) *Panic {
	if g == nil {
		do()
		return nil
	}
	caught, fatal := try(do)
	if fatal != nil {
		// Here, where the panic is over: the runtime would print the value of one that is under way.
		panic(fatal)
	}
	if caught != nil {
		g.panics.WithLabelValues(part).Inc()
		g.log.Error("a panic was recovered from; the object that caused it is left alone until it changes", "part", part,
			"object", key.String(), "type", caught.Type, "panic", caught.Reason(), "stack", string(caught.Stack))
	}
	return caught
}

// try runs do. It returns the panic that do ended with, and fatal if that must end the process.
func try(do func()) (caught *Panic, fatal *unsafe) {
	defer func() {
		if value := recover(); value != nil {
			caught, fatal = examine(value)
		}
	}()
	do()
	return nil, nil
}

// examine makes a Panic of the value of one. It is called by try's deferred function, so the frames of what panicked are still on the
// stack.
func examine(value any) (*Panic, *unsafe) {
	if u, ok := value.(*unsafe); ok {
		return nil, u
	}
	p := &Panic{Type: fmt.Sprintf("%T", value), Stack: debug.Stack()}
	if err, ok := value.(runtime.Error); ok {
		p.What = err.Error()
	}
	pcs := make([]uintptr, 512)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	panicked := false
	for {
		f, more := frames.Next()
		name, ours := strings.CutPrefix(f.Function, module)
		switch {
		case ours && name == "internal/contain.try" && panicked:
			return p, nil
		case !panicked:
			panicked = f.Function == "runtime.gopanic"
		case !strings.HasPrefix(f.Function, "runtime."):
			if p.Where == "" {
				p.Where = name
			}
			if in := sharedBy(name); ours && in != "" {
				return nil, &unsafe{p, in}
			}
		}
		if !more {
			// The stack is deeper than what was looked at: nothing is known of the rest.
			return nil, &unsafe{p, "a deep stack"}
		}
	}
}

func sharedBy(function string) string {
	for _, s := range shared {
		if strings.HasPrefix(function, s) {
			return s
		}
	}
	return ""
}

// Locker is a mutex that may be tried.
type Locker interface {
	TryLock() bool
	Unlock()
}

// lockedMax is how long a mutex may be held by others before it is taken for one that a panic has left locked.
var lockedMax = 10 * time.Second // a variable for tests

// Unlocked panics if one of the mutexes stays locked: whoever held it was interrupted by the panic that was recovered from.
func (p *Panic) Unlocked(mutexes ...Locker) {
	deadline := time.Now().Add(lockedMax)
	for _, m := range mutexes {
		for !m.TryLock() {
			if time.Now().After(deadline) {
				panic(&unsafe{p, "a mutex that is still locked"})
			}
			time.Sleep(time.Millisecond)
		}
		m.Unlock()
	}
}

var _ Locker = (*sync.Mutex)(nil)
