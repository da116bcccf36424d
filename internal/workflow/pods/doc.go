// Package pods builds the pod of a workflow's node and reads its outcome. It is pure.
//
//	engine.CreatePod, Options ──Build──▶ pod ──(runs)──▶ pod, WorkflowTaskResult ──Observe──▶ engine.PodState
//
// A pod holds nothing that its template does not need. A template whose outputs nobody reads
// becomes a pod with the user's containers as they are: no init container, no wait container, no
// program of ours. The cost of each feature:
//
//	a script's source, a raw artifact   a file that the kubelet makes from an annotation
//	sidecars                            init containers with restartPolicy Always: the kubelet ends them when main is done
//	a result, output parameters,        the command is wrapped by lockstep-exec, which an image volume supplies, or an init
//	an order of containers              container where the cluster has no image volumes
//	input artifacts                     an init container that fetches them
//	output artifacts                    main packs them; to a volume directly, else a sidecar uploads them once main is done
//
// Secrets for artifacts are mounted only into the containers that move the artifacts, never into
// the user's.
package pods
