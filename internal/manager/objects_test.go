package manager_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestARestartMakesNoObjectsAgain checks that a restart creates no objects for the plugins of a
// waiting job that already exist, because creates that fail are writes, too. An object deleted
// meanwhile is created again.
func TestARestartMakesNoObjectsAgain(t *testing.T) {
	t.Parallel()
	e := startUnmanaged(t)
	stop := e.run()
	waiting := func(name string) string {
		return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  minAvailable: 5
  plugins: {svc: [], ssh: [], env: []}
  tasks:
  - name: main
    replicas: 5
    template: {spec: {containers: [{name: main, image: busybox, resources: {requests: {cpu: "6"}}}]}}
`, name)
	}
	e.manifest(jobs, waiting("whole"))
	e.manifest(jobs, waiting("robbed"))
	isWaiting := func(j *batch.Job) error {
		if c := j.Status.Condition(batch.JobScheduled); c == nil {
			return fmt.Errorf("it does not wait for room")
		}
		return nil
	}
	e.until("whole", isWaiting)
	e.until("robbed", isWaiting)
	stop()
	if err := e.core.CoreV1().ConfigMaps(e.ns).Delete(t.Context(), "robbed-svc", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := managerWrites(t, e.c, e.ns)
	stop = e.run()
	e.eventually("the object that was deleted is there", func() error {
		_, err := e.core.CoreV1().ConfigMaps(e.ns).Get(t.Context(), "robbed-svc", metav1.GetOptions{})
		return err
	})
	e.manifest(jobs, `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: after}
spec:
  tasks:
  - {name: main, replicas: 1, template: {spec: {containers: [{name: main, image: busybox}]}}}
`)
	e.until("after", inPhase(batch.Running))
	stop()
	after := managerWrites(t, e.c, e.ns)
	for what, n := range map[string]int{"configmaps create": 1, "services create": 0, "secrets create": 0, "networkpolicies create": 0} {
		if got := after[what] - before[what]; got != n {
			t.Errorf("%s: %d times after the restart, want %d (before %v, after %v)", what, got, n, before, after)
		}
	}
	if before["configmaps create"] != 2 || before["services create"] != 2 || before["secrets create"] != 2 {
		t.Errorf("the plugins made %v, want objects for each job", before)
	}
}
