// Package sandbox evaluates programs of users in child processes, whose memory, CPU time and output are limited, and which
// can neither open files nor connect to anything. What a hostile program can do is end its child.
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
// A program that has a pool calls Main first of all with the Table of its evaluators: started as a child, it never
// returns from there. Test binaries do it in TestMain.
//
// # Errors
//
// Do returns *Exceeded for a request that took more than a limit, *Crashed for one that ended its child otherwise, and
// *Failed for an error that the evaluator returned itself. These three are of the request alone: the same request would
// fail again (see Permanent). Everything else (ErrBusy, ErrLate, a child that cannot be started) says nothing about the
// request, which may be tried again later.
//
// # Fairness
//
// At most Config.Slots requests run at a time. A request that runs for longer than slowAfter is slow: it gets a lower
// priority from the kernel, gives up its slot for one of Config.SlowSlots as soon as there is one, and its tenant gets only
// one more child until it ends. So one tenant's slow programs take neither all children nor all processors.
//
// Of the tenants that wait, the one is next that will have used the least time by the end of its request, by what its
// requests usually take (fair queueing by virtual finish times). A tenant that had no requests for a while begins where the
// one with the least is, or at most Limits.CPU above.
//
// The bound: while a request waits whose tenant asks for less than its share of the time, no request of another tenant
// begins that usually takes longer, however many other tenants there are. It waits until one that runs ends. A tenant of
// which nothing is known, or that has used more than the others, waits for at most one turn, of Limits.CPU, of each of the
// others.
//
// # Limits
//
// A child limits itself before it reads its first request: address space (RLIMIT_AS,
// RLIMIT_DATA, and the Go runtime's own limit below them), stack depth, open files (none can be opened), system calls (seccomp: those of the Go runtime). It ends with its parent
// (PDEATHSIG, and the end of its input), and is the first to go when the system lacks memory (oom_score_adj). The parent
// looks after children that are busy for longer than watchEvery, and kills those over a limit. Where the kernel lacks one of
// these, the others hold; the pool logs what is missing.
package sandbox
