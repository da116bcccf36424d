package kubeclient

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DryRun makes the API server validate every write and persist none.
type DryRun bool

// Option returns the value of the DryRun field of write options.
func (d DryRun) Option() []string {
	if d {
		return []string{metav1.DryRunAll}
	}
	return nil
}
