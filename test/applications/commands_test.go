package applications

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

const commandApp = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec:
  components: []
  workflow:
    steps:
    - name: list
      type: vela-cli
      properties:
        command: [vela, ls]
        image: example.com/cli:1
        serviceAccountName: robot
        storage: {secret: [{name: s, mountPath: /s, secretName: account}]}
    - {name: after, type: print-message-in-status, properties: {message: done}}
`

// TestAStepRunsACommand checks the Job of a step vela-cli, which waits for the Job and is deleted with
// the application.
func TestAStepRunsACommand(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	v.beside("{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot}}")
	v.beside("{apiVersion: v1, kind: Secret, metadata: {name: account}}")
	v.apply(commandApp)
	job := &batchv1.Job{}
	eventually(v, "the Job is there", func() error {
		jobs, err := v.w.core.BatchV1().Jobs(v.ns).List(t.Context(), metav1.ListOptions{LabelSelector: oam.AppNameLabel + "=shop"})
		if err != nil {
			return err
		}
		if len(jobs.Items) != 1 {
			return fmt.Errorf("there are %d Jobs", len(jobs.Items))
		}
		job = &jobs.Items[0]
		return nil
	})
	pod := job.Spec.Template.Spec
	if c := pod.Containers[0]; pod.ServiceAccountName != "robot" || !slices.Equal(c.Command, []string{"vela", "ls"}) ||
		c.Image != "example.com/cli:1" || c.VolumeMounts[0].MountPath != "/s" || pod.Volumes[0].Secret.SecretName != "account" || *job.Spec.BackoffLimit != 3 {
		t.Errorf("the Job is %+v", job.Spec)
	}
	eventually(v, "its pod has ended", func() error {
		pods, err := v.w.core.CoreV1().Pods(v.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "workflow.oam.dev/step-name=shop-list"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		_, err = v.w.core.CoreV1().Pods(v.ns).Patch(t.Context(), pods.Items[0].Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
		return err
	})
	v.until("shop", "running", "shop-v1")
	if err := v.w.dyn.Resource(velaApplications).Namespace(v.ns).Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(v, "the Job is gone", func() error {
		jobs, err := v.w.core.BatchV1().Jobs(v.ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(jobs.Items) > 0 {
			return fmt.Errorf("%s is there", jobs.Items[0].Name)
		}
		return err
	})
}
