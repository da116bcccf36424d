package cron

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Outcome is how a run has ended.
type Outcome int

// The outcomes.
const (
	Active Outcome = iota // it has not ended
	Succeeded
	Failed
)

// Name returns the name of a cron's run for a scheduled time.
func Name(cron string, scheduled time.Time) string {
	return fmt.Sprintf("%s-%d", cron, scheduled.Unix())
}

// SortByAge sorts runs by their creation, the oldest first.
func SortByAge[R metav1.Object](runs []R) {
	slices.SortFunc(runs, func(a, b R) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(a.GetName(), b.GetName()))
	})
}

// BeyondLimits returns the oldest runs that have ended beyond the numbers to keep of each outcome.
// runs are sorted by age.
func BeyondLimits[R metav1.Object](runs []R, outcome func(R) Outcome, succeeded, failed int32) []R {
	kept := map[Outcome]int32{Succeeded: max(0, succeeded), Failed: max(0, failed)}
	var out []R
	for _, r := range slices.Backward(runs) {
		o := outcome(r)
		if o == Active || r.GetDeletionTimestamp() != nil {
			continue
		}
		if kept[o]--; kept[o] < 0 {
			out = append(out, r)
		}
	}
	return out
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
