// Package capacity finds the highest rate of arrivals that a system keeps up with. It is pure: it says
// which rate to try next, and whether a step at a rate shows that the system kept up. The caller sends
// the arrivals, at times that do not depend on the system (an open loop).
//
//	Next ──▶ rate ──▶ arrivals at that rate, and how long each waited ──▶ Growth ──▶ Step.Verdict ──▶ Note
//	  ▲                                                                                               │
//	  └───────────────────────────────────────────────────────────────────────────────────────────────┘
//
// The rate grows until the system falls behind, and then the interval between the highest rate that it
// kept up with and the lowest one at which it fell behind is halved until it is narrow. A machine that
// stalls once must not end the search: a rate counts as too high if the system fell behind twice.
package capacity
