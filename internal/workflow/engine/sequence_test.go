package engine

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

func TestHostileSequencesAreRefused(t *testing.T) {
	number := func(n int) *intstr.IntOrString { v := intstr.FromString(strconv.Itoa(n)); return &v }
	for name, c := range map[string]struct {
		sequence wf.Sequence
		want     string
	}{
		"a count of a billion":        {wf.Sequence{Count: number(1_000_000_000)}, "withSequence.count"},
		"an end of a billion":         {wf.Sequence{End: number(1_000_000_000)}, "items"},
		"numbers whose span is none":  {wf.Sequence{Start: number(math.MinInt), End: number(math.MaxInt)}, "items"},
		"the same, downwards":         {wf.Sequence{Start: number(math.MaxInt), End: number(math.MinInt)}, "items"},
		"a format of a million signs": {wf.Sequence{Count: number(90_000), Format: "%01000000d"}, "withSequence.format"},
	} {
		if items, err := sequence(&c.sequence); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d items, %v", name, len(items), err)
		}
	}
	if items, err := sequence(&wf.Sequence{Count: number(3), Format: "n%03d"}); err != nil || string(items[2]) != `"n002"` {
		t.Error(items, err)
	}
}
