package capacity

import "slices"

// The verdicts on a step of a search.
const (
	KeptUp       = "kept up"
	FellBehind   = "fell behind"
	ClientBehind = "the client fell behind"
	// TooShort is the verdict on a step whose waits do not grow, but in which most arrivals still waited
	// at its end: it says nothing about how the waits go on.
	TooShort = "most still waited"
)

// ArrivalsMin is the least number of arrivals in a step: with fewer, nothing can be said about how their
// waits grow.
const ArrivalsMin = 30

// Step is what a step of a search showed.
type Step struct {
	// Arrivals is the number of jobs, or workflows, that were sent. Waiting is how many of them still
	// waited when the last one was due, and Unserved how many were not served in time.
	Arrivals, Waiting, Unserved int
	// Growth is the growth of the waits, and LagGrowth of the times by which the client was late.
	Growth, LagGrowth float64
}

// Verdict says whether the system kept up.
func (s Step) Verdict() string {
	switch {
	case s.Growth-s.LagGrowth > GrowthMax:
		return FellBehind
	case s.LagGrowth > GrowthMax:
		return ClientBehind
	case s.Unserved > 0 || s.Growth > GrowthMax:
		return FellBehind
	case 2*s.Waiting > s.Arrivals:
		return TooShort
	}
	return KeptUp
}

// Doubt says why the system may be able to do more than a search with such verdicts found; empty if
// nothing suggests it.
func Doubt(verdicts []string) string {
	switch {
	case slices.Contains(verdicts, ClientBehind):
		return "the client could not send faster in some steps: the system may be able to do more"
	case slices.Contains(verdicts, TooShort):
		return "in some steps most arrivals still waited at the end: longer steps, --rate-step, may show that the system can do more"
	}
	return ""
}
