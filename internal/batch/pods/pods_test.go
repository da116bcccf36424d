package pods

import (
	"strings"
	"testing"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestAJobOfTooManyPodsIsInvalid checks that such a job costs no more memory than the largest valid
// job, whatever its plugins would add to its pods.
func TestAJobOfTooManyPodsIsInvalid(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas, want []int32
		says           string
	}{
		"as many as there may be":         {[]int32{100_000, 50_000}, []int32{100_000, 50_000}, ""},
		"one more, in all tasks together": {[]int32{100_000, 50_001, 7}, []int32{100_000, 50_000, 0}, "spec.tasks: 150008 replicas together; a job has at most 150000 pods"},
		"two billion in each of two":      {[]int32{2_147_483_647, 2_147_483_647}, []int32{150_000, 0}, "spec.tasks: 4294967294 replicas together"},
	} {
		t.Run(name, func(t *testing.T) {
			job := &batch.Job{}
			job.Name = "j"
			job.Spec.Plugins = map[string]batch.PluginArguments{batch.EnvPlugin: nil, batch.SSHPlugin: nil}
			for _, n := range tc.replicas {
				job.Spec.Tasks = append(job.Spec.Tasks, batch.TaskSpec{Replicas: n})
			}
			set, err := New(job, Options{})
			if err == nil && tc.says != "" || err != nil && !strings.HasPrefix(err.Error(), tc.says) {
				t.Errorf("%v; want %q", err, tc.says)
			}
			for i, task := range set.Tasks() {
				if task.Replicas != tc.want[i] {
					t.Errorf("task %d has %d replicas; want %d", i, task.Replicas, tc.want[i])
				}
			}
		})
	}
}
