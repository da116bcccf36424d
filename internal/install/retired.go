package install

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/config"
)

// removeRetired removes objects that earlier versions installed and this version does not. It calls
// done for each such object that exists.
func (w *installer) removeRetired(ctx context.Context, done func(*unstructured.Unstructured, Change)) error {
	for _, o := range config.Retired() {
		resource := resourceOf(w.client, o)
		live, err := resource.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("install: %s: %w", nameOf(o), err)
		}
		if notOurs(live) != "" && !asWanted(live, o) {
			done(live, Kept)
			continue
		}
		uid := live.GetUID()
		err = resource.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, DryRun: w.dryRun()})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("install: remove %s, which an earlier version installed: %w", nameOf(o), err)
		}
		done(live, Removed)
	}
	return nil
}
