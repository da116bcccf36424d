package install

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// removeRetired removes objects that earlier versions installed and this version does not. It also
// removes the right to every kind, and the policy on kinds that are not served, unless the options ask
// for them. It calls done for each such object that exists.
func (w *installer) removeRetired(ctx context.Context, done func(*unstructured.Unstructured, Change)) error {
	retired := config.Retired()
	if !w.opts.AnyKind {
		retired = append(retired, config.AnyKind(w.opts.ActAsManager)...)
	}
	if !w.opts.RefuseUnservedKinds {
		retired = append(retired, config.ServedKinds()...)
	}
	for _, o := range retired {
		live, kept, err := removeLive(ctx, resourceOf(w.client, o), o.GetName(), kubeclient.DryRun(w.opts.DryRun),
			func(live *unstructured.Unstructured) (string, error) {
				if asWanted(live, o) {
					return "", nil
				}
				return notOurs(live), nil
			})
		switch {
		case err != nil:
			return fmt.Errorf("install: remove %s, which an earlier version installed: %w", nameOf(o), err)
		case live == nil:
		case kept != "":
			done(live, Kept)
		default:
			done(live, Removed)
		}
	}
	return nil
}
