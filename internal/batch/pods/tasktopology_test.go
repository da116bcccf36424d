package pods

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

func withTopology(t interface{ Fatal(...any) }, annotations string) *batch.Job {
	job := &batch.Job{}
	err := yaml.Unmarshal([]byte(`
metadata: {name: j, namespace: n, annotations: {`+annotations+`}}
spec:
  tasks:
  - {name: ps, replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}
  - {name: worker, replicas: 1, template: {spec: {containers: [{name: c, image: i}],
      affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone}}]}}}}}
  - {name: chief, replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}
  - {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}
`), job)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// preferences returns what the pods of a job prefer, a line for each task.
func preferences(t interface{ Fatal(...any) }, job *batch.Job) string {
	set, err := New(job, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := range set.Tasks() {
		task := &set.Tasks()[i]
		text := task.Name + ":"
		if a := task.base.Spec.Affinity; a != nil {
			if a.PodAffinity != nil {
				for _, term := range a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
					if term.PodAffinityTerm.LabelSelector == nil {
						text += " own"
						continue
					}
					text += fmt.Sprint(" +", term.PodAffinityTerm.LabelSelector.MatchExpressions[0].Values)
				}
			}
			if a.PodAntiAffinity != nil {
				for _, term := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
					text += fmt.Sprint(" -", term.PodAffinityTerm.LabelSelector.MatchExpressions[0].Values)
				}
			}
		}
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

func TestTasksPreferNodesOfOthers(t *testing.T) {
	const affinity, anti = scheduling.TaskAffinityAnnotation, scheduling.TaskAntiAffinityAnnotation
	for annotations, want := range map[string]string{
		"":                         "ps:\nworker: own\nchief:\ndefault3:",
		affinity + `: "ps,worker"`: "ps: +[worker]\nworker: own +[ps]\nchief:\ndefault3:",
		affinity + `: "ps,worker;worker;ps,chief,"`:            "ps: +[chief worker]\nworker: own +[ps worker]\nchief: +[ps]\ndefault3:",
		anti + `: "ps;ps,default3"`:                            "ps: -[default3 ps]\nworker: own\nchief:\ndefault3: -[ps]",
		affinity + `: " ps , worker ", ` + anti + `: "worker"`: "ps: +[worker]\nworker: own +[ps] -[worker]\nchief:\ndefault3:",
		affinity + `: "ps,nobody", ` + anti + `: "ps"`:         "ps: -[ps]\nworker: own\nchief:\ndefault3:",
		affinity + `: "ps,ps"`:                                 "ps:\nworker: own\nchief:\ndefault3:",
		affinity + `: ";"`:                                     "ps:\nworker: own\nchief:\ndefault3:",
	} {
		job := withTopology(t, annotations)
		if got := preferences(t, job); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", annotations, got, want)
		}
		if own := job.Spec.Tasks[1].Template.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(own) != 1 {
			t.Errorf("%s: the template has changed", annotations)
		}
	}
}

func TestRanksOfTasks(t *testing.T) {
	for order, want := range map[string]string{
		"":                   "[] true",
		"worker,ps":          "[1 0 2 2] true",
		"default3":           "[1 1 1 0] true",
		"worker;ps":          "[] false",
		"worker,nobody":      "[] false",
		"worker,ps,worker":   "[] false",
		" chief , ps,worker": "[1 2 0 3] true",
	} {
		ranks, ok := TaskRanks(withTopology(t, fmt.Sprintf("%s: %q", scheduling.TaskOrderAnnotation, order)))
		if got := fmt.Sprint(ranks, " ", ok); got != want {
			t.Errorf("%q: got %s, want %s", order, got, want)
		}
	}
}

// TestPreferencesAreMutual checks for random groups that a task prefers, or avoids, another exactly if a
// group names both, and so the other way round.
func TestPreferencesAreMutual(t *testing.T) {
	names := []string{"ps", "worker", "chief", "default3"}
	rapid.Check(t, func(t *rapid.T) {
		var groups [][]string
		var texts []string
		for range rapid.IntRange(0, 4).Draw(t, "groups") {
			group := rapid.Permutation(names).Draw(t, "names")[:rapid.IntRange(1, 4).Draw(t, "size")]
			groups, texts = append(groups, group), append(texts, strings.Join(group, ","))
		}
		job := withTopology(t, fmt.Sprintf("%s: %q", scheduling.TaskAntiAffinityAnnotation, strings.Join(texts, ";")))
		set, err := New(job, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range names {
			var avoids []string
			if affinity := set.tasks[i].base.Spec.Affinity; affinity != nil && affinity.PodAntiAffinity != nil {
				avoids = affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm.LabelSelector.MatchExpressions[0].Values
			}
			for _, b := range names {
				want := slices.ContainsFunc(groups, func(group []string) bool {
					return slices.Contains(group, a) && slices.Contains(group, b) && (a != b || len(group) == 1)
				})
				if slices.Contains(avoids, b) != want {
					t.Fatalf("%q: %s avoids %v", texts, a, avoids)
				}
			}
		}
	})
}
