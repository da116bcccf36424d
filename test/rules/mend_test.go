package rules

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// TestMalformedDurationsCanBeMended checks that users can correct malformed durations. An API
// server with an older schema may have stored a Job whose runningEstimate, or the timeout of one of
// its policies, is no duration. The manager leaves such a Job alone. Its user may write a valid
// duration there or remove the field, but may not change anything else.
func TestMalformedDurationsCanBeMended(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	c := client(t)
	at := in(c, jobs)
	const spec = `/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/`
	open := `[{"op": "remove", "path": "` + spec + `runningEstimate/pattern"},
	  {"op": "remove", "path": "` + spec + `policies/items/properties/timeout/pattern"},
	  {"op": "remove", "path": "` + spec + `tasks/items/properties/policies/items/properties/timeout/pattern"}]`
	if _, err := c.Resource(crds).Patch(t.Context(), "jobs.batch.volcano.sh", types.JSONPatchType, []byte(open), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// policies returns a job whose own two policies and whose task's policy have these timeouts.
	policies := func(own, second, tasks string) string {
		return `
policies:
- {event: PodFailed, action: RestartJob, timeout: ` + own + `}
- {event: PodEvicted, action: RestartTask, timeout: ` + second + `}
tasks:
- name: w
  replicas: 2
  policies:
  - {event: TaskFailed, action: AbortJob, timeout: ` + tasks + `}
  template: ` + template
	}
	// The pattern of the schema also accepts values longer than a duration can be.
	malformed := map[string]string{
		"mended": job("runningEstimate: abc"), "emptied": job("runningEstimate: '90'"), "mended-late": job("runningEstimate: 10000000h"),
		"kept": job("runningEstimate: abc"), "timeouts": policies("soon", "60s", "10000000h"), "timeouts-kept": policies("soon", "60s", "later"),
		"timeouts-out": policies("soon", "60s", "later"),
	}
	t.Cleanup(func() {
		if err := install.Apply(context.Background(), cfg); err != nil {
			t.Error(err)
		}
	})
	for name, spec := range malformed {
		localtest.Eventually(t, "the older schema is in force", func() error {
			return create(t, c, jobs, name, spec, false)
		})
	}
	if err := create(t, c, jobs, "well-formed", job("runningEstimate: 90s"), false); err != nil {
		t.Fatal(err)
	}
	if err := install.Apply(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, "the schema of this version is in force", func() error {
		if err := create(t, c, jobs, "new", job("runningEstimate: abc"), true); err == nil {
			return fmt.Errorf("a malformed estimate is accepted")
		}
		if err := create(t, c, jobs, "new", policies("60s", "60s", "soon"), true); err == nil {
			return fmt.Errorf("a malformed timeout is accepted")
		}
		return nil
	})
	patch := func(name, patch string) error {
		_, err := at.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	// applied returns the patch that kubectl apply makes from a manifest whose lists have changed.
	applied := func(spec string) string {
		data, err := yaml.YAMLToJSON([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		return `{"spec":` + string(data) + `}`
	}
	const fixedTask = "spec.tasks[*].policies: may not change after creation"
	const fixed = "spec.policies: may not change after creation"
	for _, c := range []struct{ name, job, patch, refusal string }{
		{"another malformed one", "kept", `{"spec":{"runningEstimate":"def"}}`, "spec.runningEstimate"},
		{"something else", "kept", `{"spec":{"maxRetry":7}}`, "spec.maxRetry: may not change after creation"},
		{"something else beside it", "kept", `{"spec":{"maxRetry":7,"runningEstimate":"90s"}}`, "spec.maxRetry: may not change after creation"},
		{"one that is well formed", "well-formed", `{"spec":{"runningEstimate":"91s"}}`, "spec.runningEstimate: may not change after creation"},
		{"one that is well formed, taken out", "well-formed", `{"spec":{"runningEstimate":null}}`, "spec.runningEstimate: may not change after creation"},
		{"a label of the job", "kept", `{"metadata":{"labels":{"a":"b"}}}`, ""},
		{"mended", "mended", `{"spec":{"runningEstimate":"90s"}}`, ""},
		{"mended once and for all", "mended", `{"spec":{"runningEstimate":"91s"}}`, "spec.runningEstimate: may not change after creation"},
		{"mended where the number was too large", "mended-late", `{"spec":{"runningEstimate":"90s"}}`, ""},
		{"a timeout, by another malformed one", "timeouts-kept", applied(policies("later", "60s", "later")), "spec.policies[0].timeout"},
		{"a task's timeout, by another malformed one", "timeouts-kept", applied(policies("soon", "60s", "soon")), "policies[0].timeout"},
		{"a timeout, and one beside it", "timeouts-kept", applied(policies("30s", "61s", "later")), fixed},
		{"a timeout, and its action", "timeouts-kept", applied(strings.Replace(policies("30s", "60s", "later"), "RestartJob", "AbortJob", 1)), fixed},
		{"a timeout, and its event taken out", "timeouts-kept", applied(strings.Replace(policies("30s", "60s", "later"), "event: PodFailed", "exitCode: 3", 1)), fixed},
		{"a task's timeout, and its action", "timeouts-kept", applied(strings.Replace(policies("soon", "60s", "9s"), "AbortJob", "RestartJob", 1)), fixedTask},
		{"a task's policies", "timeouts-kept", applied("tasks: [" + task("name: w, replicas: 2") + "]"), fixedTask},
		{"both timeouts mended", "timeouts", applied(policies("30s", "60s", "1h")), ""},
		{"a timeout mended once and for all", "timeouts", applied(policies("31s", "60s", "1h")), fixed},
		{"a task's timeout mended once and for all", "timeouts", applied(policies("30s", "60s", "2h")), fixedTask},
		{"timeouts taken out", "timeouts-out", applied(strings.NewReplacer(", timeout: 30s", "", ", timeout: 1h", "").Replace(policies("30s", "60s", "1h"))), ""},
		{"taken out", "emptied", `{"spec":{"runningEstimate":null}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := patch(c.job, c.patch)
			if c.refusal == "" && err != nil || c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)) {
				t.Errorf("the answer is %v; want %q", err, c.refusal)
			}
		})
	}
	u, err := at.Get(t.Context(), "mended", metav1.GetOptions{})
	if estimate, _, _ := unstructured.NestedString(u.Object, "spec", "runningEstimate"); err != nil || estimate != "90s" {
		t.Errorf("the mended job has %q, error %v", estimate, err)
	}
}
