// Package sandbox evaluates programs of users in child processes. Memory, CPU time and output of a
// child are limited, and a child can neither open files nor connect to anything. All that a hostile
// program can do is end its child.
//
//	 manager                                      child: the same binary, started again
//	┌──────────────────────────────┐             ┌──────────────────────────────────┐
//	│ Pool.Do(tenant, name, input) │── request ─▶│ Table[name](input)               │
//	│   waits for its turn         │             │   after restrict():              │
//	│   takes or starts a child    │◀─ response ─│   memory, files, system calls    │
//	│   watches CPU and memory     │             └──────────────────────────────────┘
//	└──────────────────────────────┘
//
// # Programs
//
// A program with a pool must call Main first, with the Table of its evaluators: in a process
// started as a child, Main never returns. Test binaries call it in TestMain.
//
// # Errors
//
// Do returns *Exceeded for a request that exceeded a limit, *Crashed for a request that ended its
// child otherwise, and *Failed for an error returned by the evaluator. These three depend only on
// the request: the same request would fail again (see Permanent). All other errors (ErrBusy,
// ErrLate, a child that cannot be started) say nothing about the request, which may be retried
// later.
//
// # Fairness
//
// Children have a lower priority at the kernel than the program that starts them. At most
// Config.Slots requests run at a time, beside slow ones. A request that has used more than slowAfter
// of CPU time is slow: the kernel gives it a still lower priority, it moves from its slot to
// one of Config.SlowSlots as soon as one is free, and its tenant gets only one more child until it
// ends. So the slow programs of one tenant take neither all children nor all processors.
//
// Among the waiting tenants, the next is the one that will have used the least time at the end of
// its request, as estimated from the usual duration of its requests (fair queueing by virtual
// finish times). A tenant without requests for some time begins at the level of the active tenant
// that has used the least, or at most Limits.CPU above.
//
// The bound: while a request waits whose tenant requests less than its share of the time, no
// request of another tenant begins that usually takes longer, however many other tenants there are.
// The waiting request waits until a running one ends. A tenant without known history, or one that
// has used more than the others, waits for at most one turn, of Limits.CPU, of each other tenant.
//
// # Limits
//
// A child limits itself before it reads its first request: address space (RLIMIT_AS, RLIMIT_DATA,
// and the Go runtime's own limit below them), stack depth, open files (none can be opened), and
// system calls (seccomp allows what the Go runtime needs). A child ends with its parent (PDEATHSIG,
// and the end of its input), and is the first to be killed when the system lacks memory
// (oom_score_adj).
// The parent checks children every watchEvery while they are busy, and kills those that exceed a
// limit. If the kernel lacks one of these mechanisms, the others still apply; the pool logs what is
// missing.
package sandbox
