// Package pods builds the pod of a workflow's node and reads its outcome. It is pure.
//
//	engine.CreatePod, Options ──Build──▶ pod
//	pod that ran, WorkflowTaskResult ──Observe──▶ engine.PodState
//
// A pod has only what its template needs. A template whose outputs are not read becomes a pod with
// the user's containers unchanged: no init container, no wait container, no lockstep-exec. The
// cost of each feature:
//
//	a script's source, a raw artifact   a file that the kubelet makes from an annotation
//	sidecars                            init containers with restartPolicy Always, which the
//	                                    kubelet ends when main is done
//	a result, output parameters,        the command is wrapped in lockstep-exec, which an image
//	an order of containers              volume supplies, or an init container where the cluster
//	                                    has no image volumes
//	input artifacts                     an init container that fetches them
//	output artifacts                    main packs them, into the volume if their store is one;
//	                                    otherwise a sidecar uploads them once main is done
//
// Secrets for artifacts are mounted only into the containers that move the artifacts, never into
// the user's.
package pods
