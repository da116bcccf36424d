// Package migrate says what becomes of existing manifests, and of the objects of a cluster, under
// Lockstep.
//
//	objects ──▶ Check ──▶ a Result for each: its parts that differ or are missing
//	              ├── fields that the API does not have, that the API server refuses (package admission), or
//	              │   that have no effect
//	              ├── workflows: what lint finds         applications: what rendering them finds
//	              └── ConfigMaps with a scheduler configuration: package scheduler/config
//
// It knows no more than the packages that run the objects: what they do not support they list
// themselves. The differences that objects cannot be asked about are in differences.go. Check reads and
// writes nothing.
package migrate
