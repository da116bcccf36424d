package panics

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

// module is the prefix of the names of this module's functions.
const module = "lockstep.dev/lockstep/"

// shared lists, by name prefix, the functions that change state shared by all objects: a panic in
// one of them, or in a function that they call, may leave that state half-changed or locked.
var shared = []string{
	// The model of the cluster, the caches, and the queues of keys.
	"internal/cluster.(*Cluster)", "internal/informer.(*malformedStore[", "internal/informer.(*specs)",
	"internal/informer.(*Informer[...]).put", "internal/informer.(*Informer[...]).replace",
	"internal/informer.(*Informer[...]).setApart",
	"internal/controlloop.(*entry[",
	"internal/controlloop.(*Loop[...]).post", "internal/controlloop.(*Loop[...]).Put",
	// Gangs that wait for resources, and the use of queues.
	"internal/scheduler.(*Scheduler).Submit", "internal/scheduler.(*Scheduler).Withdraw",
	"internal/scheduler.(*Scheduler).Move",
	"internal/scheduler.(*pendingGangs)", "internal/scheduler/share.", "internal/scheduler/pin.(*Pinner).Grant",
	// The writer's queues and limits.
	"internal/apiwriter.",
	// Plans, locks, caches and slots of all jobs or workflows.
	"internal/podset/plan.(*Cache)", "internal/batch.(*sshKeys)", "internal/workflow/locks.",
	"internal/workflow/controller.(*lockKeeper)", "internal/workflow/controller.(*caches)",
	"internal/workflow/controller.(*statusSlots)", "internal/workflow/controller.(*workflowMetrics)",
	"internal/workflow/controller.(*takeover)",
	"internal/workflow/controller.(*templateWaiters)", "internal/workflow/controller.(*releasedWorkflows)",
	"internal/workflow/controller.(*estimates)",
	// State shared by applications.
	"internal/application/deploy.(*StartLimiter)", "internal/application/objects.(*ManagedObjects)", "internal/application/objects.(*Watches)",
	"internal/application/objects.(*Targets)", "internal/application/definitions.(*Library)",
	"internal/application/evaluation.(*Cache)", "internal/application/charts.(*Store)", "internal/application/clusters.(*Registry)",
	"internal/application/plan.(*Memo)",
}

// Shared returns the name prefixes of the functions in which a panic ends the process.
func Shared() []string { return slices.Clone(shared) }

// Panic is a panic that was recovered from.
type Panic struct {
	// Where is the function that panicked.
	Where string
	// What is the message if the panic is a runtime error, and otherwise empty: other values of
	// panics may contain confidential data, such as a part of a Secret. They are neither returned
	// nor logged.
	What string
	// Type is the Go type of the panic's value.
	Type string
	// Stack is the stack of the goroutine at the panic.
	Stack []byte
}

// Error implements error. The text is the same each time the same panic occurs.
func (p *Panic) Error() string { return "the manager failed in " + p.Reason() }

// Reason returns Where and, if not empty, What.
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
	return fmt.Sprintf("a panic (%s) in %s: %s may have left half-changed what all objects share, so the process ends; "+
		"it happened at\n%s",
		u.panic.Type, u.panic.Reason(), u.in, u.panic.Stack)
}

// Guard recovers from panics, logs and counts them. A nil Guard does nothing: a panic ends the
// process.
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
			return nil, fmt.Errorf("panics: %w", err)
		}
	}
	return g, nil
}

// Try runs do on behalf of the object under key. It returns the panic that ended do, or nil.
func (g *Guard) Try(part string, key fmt.Stringer, do func()) *Panic {
	if g == nil {
		do()
		return nil
	}
	caught, fatal := try(do)
	if fatal != nil {
		// Panic here, where the first panic is over: the runtime would print the value of a panic
		// in progress.
		panic(fatal)
	}
	if caught != nil {
		g.panics.WithLabelValues(part).Inc()
		g.log.Error("a panic was recovered from; the object that caused it is left alone until it changes", "part", part,
			"object", key.String(), "type", caught.Type, "panic", caught.Reason(), "stack", string(caught.Stack))
	}
	return caught
}

// try runs do. It returns the panic that ended do, and fatal if that panic must end the process.
func try(do func()) (caught *Panic, fatal *unsafe) {
	defer func() {
		if value := recover(); value != nil {
			caught, fatal = examine(value)
		}
	}()
	do()
	return nil, nil
}

// examine makes a Panic of a recovered value. It is called by try's deferred function, so the
// frames of the panicking function are still on the stack.
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
		case ours && name == "internal/panics.try" && panicked:
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
			// The stack is deeper than the examined part, which may miss a function in shared.
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

// Locker is a mutex with TryLock.
type Locker interface {
	TryLock() bool
	Unlock()
}

// lockedMax is how long other goroutines may hold a mutex before it counts as left locked by a
// panic.
var lockedMax = 10 * time.Second // a variable for tests

// Unlocked panics if one of the mutexes stays locked, because the recovered panic then interrupted
// its holder.
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
