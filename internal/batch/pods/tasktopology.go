package pods

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// taskTopologyWeight is the weight of each preference among the tasks of a job: the largest that there is.
// With it, the preferences count more than how full a node is.
const taskTopologyWeight = 100

// TaskGroups returns the groups of tasks in an annotation of a job, such as "ps,worker;evaluator". It
// returns false if the job has no task of a name, or if a name is twice in a group.
func TaskGroups(job *batch.Job, annotation string) (groups [][]string, ok bool) {
	text := job.Annotations[annotation]
	if text == "" {
		return nil, true
	}
	names := map[string]bool{}
	for i := range job.Spec.Tasks {
		names[job.TaskName(i)] = true
	}
	for part := range strings.SplitSeq(text, ";") {
		var group []string
		for name := range strings.SplitSeq(part, ",") {
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			if !names[name] || slices.Contains(group, name) {
				return nil, false
			}
			group = append(group, name)
		}
		if len(group) > 0 {
			groups = append(groups, group)
		}
	}
	return groups, true
}

// TaskRanks returns the place of each task in the order that an annotation of the job wishes for, from 0;
// tasks that it does not name come last. It is nil if there is no such order, and false if the order is not
// valid.
func TaskRanks(job *batch.Job) (ranks []int, ok bool) {
	groups, ok := TaskGroups(job, scheduling.TaskOrderAnnotation)
	if !ok || len(groups) == 0 {
		return ranksByGroups(job), ok
	}
	if len(groups) > 1 {
		return nil, false
	}
	order := groups[0]
	ranks = make([]int, len(job.Spec.Tasks))
	for i := range ranks {
		if ranks[i] = slices.Index(order, job.TaskName(i)); ranks[i] < 0 {
			ranks[i] = len(order)
		}
	}
	return ranks, true
}

// ranksByGroups returns the ranks of tasks without an order: first come those that avoid themselves, to
// which others then go, then those near other tasks, those near themselves, and those that avoid others. It
// is nil if the job has no groups.
func ranksByGroups(job *batch.Job) (ranks []int) {
	near, _ := TaskGroups(job, scheduling.TaskAffinityAnnotation)
	apart, _ := TaskGroups(job, scheduling.TaskAntiAffinityAnnotation)
	if near == nil && apart == nil {
		return nil
	}
	ranks = make([]int, len(job.Spec.Tasks))
	for i := range ranks {
		name := job.TaskName(i)
		in := func(groups [][]string, alone bool) bool {
			return slices.ContainsFunc(groups, func(g []string) bool { return slices.Contains(g, name) && (len(g) == 1) == alone })
		}
		switch {
		case in(apart, true):
		case in(near, false):
			ranks[i] = 1
		case in(near, true):
			ranks[i] = 2
		case in(apart, false):
			ranks[i] = 3
		default:
			ranks[i] = 4
		}
	}
	return ranks
}

// addTaskTopology adds the preferences for nodes with pods of other tasks, and against them, that
// annotations of the job state. They are preferences of the pods themselves, so that they hold for each
// scheduler, and are visible.
func (s *Set) addTaskTopology(job *batch.Job) {
	near, _ := TaskGroups(job, scheduling.TaskAffinityAnnotation)
	apart, _ := TaskGroups(job, scheduling.TaskAntiAffinityAnnotation)
	if near == nil && apart == nil {
		return
	}
	for i := range s.tasks {
		t := &s.tasks[i]
		attract, repel := termFor(job, mates(near, t.Name)), termFor(job, mates(apart, t.Name))
		if attract == nil && repel == nil {
			continue
		}
		affinity := &corev1.Affinity{}
		if own := t.base.Spec.Affinity; own != nil {
			affinity = own.DeepCopy() // the template's
		}
		if attract != nil {
			if affinity.PodAffinity == nil {
				affinity.PodAffinity = &corev1.PodAffinity{}
			}
			list := &affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			*list = append(*list, *attract)
		}
		if repel != nil {
			if affinity.PodAntiAffinity == nil {
				affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
			}
			list := &affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			*list = append(*list, *repel)
		}
		t.base.Spec.Affinity = affinity
	}
}

// mates returns the tasks that share a group with a task, in alphabetical order. A group of one task is
// about the pods of this task among themselves; in a larger group it is about the other tasks.
func mates(groups [][]string, task string) []string {
	found := map[string]bool{}
	for _, group := range groups {
		if !slices.Contains(group, task) {
			continue
		}
		for _, name := range group {
			if name != task || len(group) == 1 {
				found[name] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), cmp.Compare)
}

// termFor returns a preference that is about the nodes with pods of these tasks, or nil if there are none.
func termFor(job *batch.Job, tasks []string) *corev1.WeightedPodAffinityTerm {
	if len(tasks) == 0 {
		return nil
	}
	return &corev1.WeightedPodAffinityTerm{Weight: taskTopologyWeight, PodAffinityTerm: corev1.PodAffinityTerm{
		TopologyKey: corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{
			MatchLabels:      map[string]string{batch.JobNameKey: job.Name},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: batch.TaskSpecKey, Operator: metav1.LabelSelectorOpIn, Values: tasks}},
		},
	}}
}
