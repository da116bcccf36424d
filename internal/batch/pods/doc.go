// Package pods makes a batch job's pods, and the objects that its plugins need, from the job alone.
// It is pure.
//
//	Job ──New──▶ Set ──Task(i).Pod(index, node)──▶ pod to create
//	              ├────Task(i).Plan──────────────▶ pod as the server will store it, for placement
//	              └────Objects───────────────────▶ objects that plugins and volumes need:
//	                                                ConfigMap, Secret, Service, NetworkPolicy,
//	                                                PersistentVolumeClaim
//
// The parts that all pods of a task share are built once per job. A pod costs two small maps and,
// with the env plugin, a shallow copy of its containers. The shared parts must not be modified.
package pods
