package kubeclient

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DryRun has the API server check every write and keep none.
type DryRun bool

// Option is what the options of a write have as their DryRun.
func (d DryRun) Option() []string {
	if d {
		return []string{metav1.DryRunAll}
	}
	return nil
}
