package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestQueuesThatCannotHaveWhatTheyStateSaySo checks the condition Consistent: of a queue whose parent does
// not exist, that states more than a queue above may hold, or less than the queues below guarantee.
func TestQueuesThatCannotHaveWhatTheyStateSaySo(t *testing.T) {
	e, _ := startEvicting(t)
	name := func(n string) string { return e.ns + "-" + n }
	apply := func(n, spec string) {
		t.Helper()
		e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: %s", name(n), spec))
		t.Cleanup(func() { _ = e.dyn.Resource(queues).Delete(context.Background(), name(n), metav1.DeleteOptions{}) })
	}
	const consistent = `"type":"Consistent"`
	states := func(n string, parts ...string) {
		t.Helper()
		e.eventually("queue "+n, func() error {
			u, err := e.dyn.Resource(queues).Get(t.Context(), name(n), metav1.GetOptions{})
			if err != nil {
				return err
			}
			text := asJSON(u.Object["status"])
			if len(parts) == 0 && strings.Contains(text, consistent) || !strings.Contains(text, `"state":"Open"`) {
				return fmt.Errorf("status %s", text)
			}
			for _, part := range parts {
				if !strings.Contains(text, consistent) || !strings.Contains(text, strings.ReplaceAll(part, `"`, `\"`)) {
					return fmt.Errorf("the status lacks %q: %s", part, text)
				}
			}
			return nil
		})
	}
	//   1. A queue without its parent, and one below that. A job in it says which queue is missing.
	apply("team", "{parent: "+name("dept")+", guarantee: {resource: {cpu: 3}}, deserved: {cpu: 16}}")
	apply("one", "{parent: "+name("team")+", guarantee: {resource: {cpu: 4}}, deserved: {cpu: 4}, capability: {cpu: 20, memory: 1Gi}}")
	states("team", "ParentNotFound", `spec.parent: queue "`+name("dept")+`" does not exist`)
	states("one", "ParentNotFound", `spec.parent: queue "`+name("team")+`" above is below queue "`+name("dept")+`", which does not exist`)
	e.apply(jobYAML("j", 1, "queue: "+name("one"), ""))
	e.until("j", says(batch.JobScheduled, "QueueNotFound", "spec.queue", name("dept")))
	//   2. The parent comes. It may hold less than others state.
	apply("dept", "{capability: {cpu: 12}}")
	e.runs("j", 1)
	states("one", "AmountExceeded", `spec.capability: 20 of cpu, and queue "`+name("dept")+`" above may hold 12`)
	states("team", "AmountExceeded", `spec.deserved: 16 of cpu, and queue "`+name("dept")+`" above may hold 12`,
		"spec.guarantee.resource: 3 of cpu, and the queues below guarantee 4, which counts")
	states("dept")
	apply("two", "{parent: "+name("team")+", guarantee: {resource: {cpu: 9}}, deserved: {cpu: 9}}")
	states("dept", "AmountExceeded", "spec.capability: 12 of cpu, and the queues below guarantee 13")
	//   3. It is mended.
	patch := func(n, spec string) {
		t.Helper()
		if _, err := e.dyn.Resource(queues).Patch(t.Context(), name(n), types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch("team", `{"guarantee":null}`)
	patch("dept", `{"capability":{"cpu":"20"}}`)
	for _, n := range []string{"one", "two", "team", "dept"} {
		states(n)
	}
	e.deleteJob("j")
}
