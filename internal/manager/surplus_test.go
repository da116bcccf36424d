package manager_test

import "testing"

// TestPodsAboveTheMinimumComeLast lets three jobs wait for a full cluster, the oldest of which would
// take all of it.
func TestPodsAboveTheMinimumComeLast(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("before", 8, "", ""))
	e.runs("before", 8)
	e.apply(jobYAML("elastic", 64, "minAvailable: 1", ""))
	e.waits("elastic", "cpu")
	e.apply(jobYAML("one", 1, "", ""))
	e.apply(jobYAML("two", 1, "", ""))
	e.waits("one", "cpu")
	e.waits("two", "cpu")
	e.deleteJob("before")
	e.runs("one", 1)
	e.runs("two", 1)
	e.runs("elastic", 6)
}

// TestAJobThatGrowsOvertakesNobody lets a job of higher priority wait for a full cluster, and then
// raises the minimum of a job that runs.
func TestAJobThatGrowsOvertakesNobody(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("grown", 2, "minAvailable: 2", ""))
	e.apply(jobYAML("short", 1, "", ""))
	e.apply(jobYAML("long", 5, "", ""))
	e.runs("grown", 2)
	e.runs("short", 1)
	e.runs("long", 5)
	e.apply(jobYAML("first", 1, "priorityClassName: patient", ""))
	e.waits("first", "cpu")
	e.patchJob("grown", `[{"op": "replace", "path": "/spec/minAvailable", "value": 3}, {"op": "replace", "path": "/spec/tasks/0/replicas", "value": 3}]`)
	e.waits("grown", "cpu")
	e.deleteJob("short")
	e.runs("first", 1)
	if n := len(e.podsOf("grown")); n != 2 {
		t.Errorf("the job that grows has %d pods", n)
	}
	e.deleteJob("first")
	e.runs("grown", 3)
}
