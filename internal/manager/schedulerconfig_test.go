package manager_test

import (
	"fmt"
	"testing"

	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/scheduler/config"
)

// TestSchedulerConfigurations checks where pods go with configurations of scores: on how many nodes
// four jobs of one pod are, one after another.
func TestSchedulerConfigurations(t *testing.T) {
	e := startUnmanaged(t)
	for text, nodes := range map[string]int{
		`actions: "enqueue, allocate, backfill"`: 4,
		`
tiers:
- plugins:
  - name: resource-strategy-fit
    arguments:
      resources: {memory: {type: MostAllocated, weight: 10}, cpu: {type: LeastAllocated}}
  - name: nodeorder
    arguments: {balancedresource.weight: 0}`: 1,
		`
tiers:
- plugins:
  - name: resource-strategy-fit
    arguments:
      resources: {memory: {type: MostAllocated}, cpu: {type: LeastAllocated, weight: 10}}
  - name: nodeorder
    arguments: {balancedresource.weight: 0}`: 4,
		`tiers: [{plugins: [{name: binpack}]}]`: 1,
	} {
		settings, _, err := config.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		stop := e.run(func(c *manager.Config) {
			c.Scores, c.ScoredResources = settings.Place.Weights, settings.Place.Resources
			if settings.Place.Strategy != 0 {
				c.NodeScore = "most"
			}
		})
		used := map[string]bool{}
		for i := range 4 {
			name := fmt.Sprintf("j%d", i)
			e.apply(`apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: ` + name + `}
spec:
  tasks:
  - replicas: 1
    template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox, resources: {requests: {cpu: 1, memory: 2Gi}}}]}}`)
			e.runs(name, 1)
			used[e.podsOf(name)[0].Spec.NodeName] = true
		}
		if len(used) != nodes {
			t.Errorf("%s\nthe pods are on %d nodes, not %d", text, len(used), nodes)
		}
		for i := range 4 {
			e.deleteJob(fmt.Sprintf("j%d", i))
		}
		stop()
	}
}
