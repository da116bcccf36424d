// Package pods makes a batch job's pods and the objects its plugins need, from the job alone. It is pure.
//
//	Job ──New──▶ Set ──Task(i).Pod(index, node)──▶ pod to create
//	              ├────Task(i).Plan──────────────▶ pod as the API server will store it, for the scheduler
//	              └────Objects───────────────────▶ what plugins and volumes need: ConfigMap, Secret, Service, NetworkPolicy,
//	                                                PersistentVolumeClaim
//
// What all pods of a task share is built once per job: a pod costs two small maps and, with the env plugin, a copy of its
// containers' headers. The shared parts must not be modified.
package pods
