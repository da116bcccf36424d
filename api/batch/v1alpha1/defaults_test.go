package v1alpha1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

func TestMinAvailable(t *testing.T) {
	for what, tc := range map[string]struct {
		spec JobSpec
		want int32
	}{
		"the job's own":            {JobSpec{MinAvailable: 2, Tasks: []TaskSpec{{Replicas: 5}}}, 2},
		"all replicas":             {JobSpec{Tasks: []TaskSpec{{Replicas: 5}, {Replicas: 1}}}, 6},
		"the tasks' own":           {JobSpec{Tasks: []TaskSpec{{Replicas: 5, MinAvailable: ptr(int32(3))}, {Replicas: 1}}}, 4},
		"a task that may be empty": {JobSpec{Tasks: []TaskSpec{{Replicas: 5, MinAvailable: ptr(int32(0))}, {Replicas: 1}}}, 1},
		"the minimal partitions": {JobSpec{Tasks: []TaskSpec{{Replicas: 8,
			PartitionPolicy: &PartitionPolicySpec{TotalPartitions: 4, PartitionSize: 2, MinPartitions: 3}}}}, 6},
		"partitions without a minimum": {JobSpec{Tasks: []TaskSpec{{Replicas: 8,
			PartitionPolicy: &PartitionPolicySpec{TotalPartitions: 4, PartitionSize: 2}}}}, 8},
	} {
		t.Run(what, func(t *testing.T) {
			if got := (&Job{Spec: tc.spec}).MinAvailable(); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	j := &Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}, Spec: JobSpec{Tasks: []TaskSpec{{Name: "ps"}, {}}}}
	if got := []string{j.PodName(0, 0), j.PodName(1, 12)}; !cmp.Equal(got, []string{"j-ps-0", "j-default1-12"}) {
		t.Error(got)
	}
}

func TestWhatTheJobLeavesOpen(t *testing.T) {
	j := &Job{Spec: JobSpec{Tasks: []TaskSpec{{}, {
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulerName: "other", PriorityClassName: "low", HostNetwork: true}},
	}}}}
	got := []any{j.QueueName(), j.SchedulerName(0), j.SchedulerName(1), j.PriorityClassName(0), j.PriorityClassName(1),
		j.Retries(), j.Spec.Tasks[0].DNSPolicy(), j.Spec.Tasks[1].DNSPolicy()}
	want := []any{"default", "lockstep", "other", "", "low", int32(3), corev1.DNSPolicy(""), corev1.DNSClusterFirstWithHostNet}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRestartsThatFailATask(t *testing.T) {
	for what, tc := range map[string]struct {
		maxRetry *int32
		want     []int32 // of 0 to 4 restarts, those that fail the task
	}{
		"the default":         {nil, []int32{3, 4}},
		"any restart":         {ptr(int32(0)), []int32{1, 2, 3, 4}},
		"more than there are": {ptr(int32(5)), nil},
		"no limit":            {ptr(int32(-1)), nil},
	} {
		t.Run(what, func(t *testing.T) {
			var got []int32
			for n := range int32(5) {
				if (&TaskSpec{MaxRetry: tc.maxRetry}).FailsAfter(n) {
					got = append(got, n)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPluginsNeedOthers(t *testing.T) {
	args := PluginArguments{"--x=y"}
	for what, tc := range map[string]struct{ have, want map[string]PluginArguments }{
		"none":                     {nil, nil},
		"env needs nothing":        {map[string]PluginArguments{"env": nil}, map[string]PluginArguments{"env": nil}},
		"pytorch needs svc":        {map[string]PluginArguments{"pytorch": args}, map[string]PluginArguments{"pytorch": args, "svc": nil}},
		"mpi needs svc and ssh":    {map[string]PluginArguments{"mpi": nil}, map[string]PluginArguments{"mpi": nil, "svc": nil, "ssh": nil}},
		"what is there keeps args": {map[string]PluginArguments{"ray": nil, "svc": args}, map[string]PluginArguments{"ray": nil, "svc": args}},
	} {
		t.Run(what, func(t *testing.T) {
			j := &Job{Spec: JobSpec{Plugins: tc.have}}
			if diff := cmp.Diff(tc.want, j.Plugins()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConditionsAndPhasesKeepApart(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	s := &JobStatus{}
	steps := []bool{
		s.SetPhase(Pending, "", "", at(1)),
		s.SetCondition(JobScheduled, corev1.ConditionFalse, "NotEnoughResources", "short of cpu", at(2)),
		s.SetCondition(JobScheduled, corev1.ConditionFalse, "NotEnoughResources", "short of cpu", at(3)), // nothing new
		s.SetCondition(JobScheduled, corev1.ConditionFalse, "NotEnoughResources", "short of memory", at(4)),
		s.SetPhase(Running, "", "", at(5)),
		s.SetPhase(Running, "", "", at(6)), // nothing new
		s.RemoveCondition(JobScheduled),
		s.RemoveCondition(JobScheduled), // nothing left
		s.SetPhase(Pending, "", "", at(7)),
	}
	if diff := cmp.Diff([]bool{true, true, false, true, true, false, true, false, true}, steps); diff != "" {
		t.Error(diff)
	}
	want := []JobCondition{{Status: Pending, LastTransitionTime: ptr(at(7))}, {Status: Running, LastTransitionTime: ptr(at(5))}}
	if diff := cmp.Diff(want, s.Conditions); diff != "" {
		t.Error(diff)
	}
}
