// Package plugin runs plugin templates from their own pods: it asks the executor plugins, which are
// sidecars of the pod, one after the other until one takes the template, and asks that one again for
// as long as it wants to be.
//
//	tokens (init) ──▶ a token for each plugin, in a file that only the plugin and main see
//	main ──POST /api/v1/template.execute──▶ plugin a: {}        not its own
//	     ──POST──▶ plugin b: Running, requeue 2m  ──2m──POST──▶ plugin b: Succeeded, outputs
package plugin
