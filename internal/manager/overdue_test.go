package manager_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
)

// TestAnOverdueJobGetsWhatBecomesFree lets a job that needs the whole cluster wait behind small ones.
func TestAnOverdueJobGetsWhatBecomesFree(t *testing.T) {
	e := startUnmanaged(t)
	// The reasons of those that wait are brought up to date when they are tried again.
	e.run(func(c *manager.Config) { c.RetryInterval = time.Second })
	for i := range 8 {
		e.apply(jobYAML(fmt.Sprint("before", i), 1, "", ""))
	}
	for i := range 8 {
		e.runs(fmt.Sprint("before", i), 1)
	}
	e.apply(strings.Replace(jobYAML("large", 8, "", ""), "{name: large}",
		`{name: large, annotations: {volcano.sh/sla-waiting-time: 1s}}`, 1))
	e.waits("large", "what becomes free on 4 nodes is kept for it, because it has waited longer than 1s")
	e.apply(jobYAML("small", 1, "", ""))
	e.waits("small", "not enough cpu")
	e.deleteJob("before0")
	e.waits("small", "capacity is kept for a gang that has waited longer")
	for i := 1; i < 8; i++ {
		if n := len(e.podsOf("small")); n > 0 {
			t.Fatalf("the small job has %d pods", n)
		}
		e.deleteJob(fmt.Sprint("before", i))
	}
	e.runs("large", 8)
	e.deleteJob("large")
	e.runs("small", 1)
}

func TestWrongDurationsAreNamed(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(strings.Replace(jobYAML("wrong", 1, "", "annotations: {lockstep.dev/expected-duration: -1h}"), "{name: wrong}",
		`{name: wrong, annotations: {volcano.sh/sla-waiting-time: soon}}`, 1))
	e.until("wrong", func(j *batch.Job) error {
		const want = "not acted on: spec.tasks[].template.metadata.annotations[lockstep.dev/expected-duration] (it is no positive duration), " +
			"metadata.annotations[volcano.sh/sla-waiting-time] (it is no positive duration)"
		if c := j.Status.Condition(batch.JobSupported); c == nil || c.Message != want {
			return fmt.Errorf("the condition Supported is %v", c)
		}
		return nil
	})
	e.runs("wrong", 1)
}
