// Package soak measures a system under a steady churn of jobs for a long time, and says whether its
// memory, its goroutines, the objects of the cluster or the database of etcd grow without bound.
//
//	jobs are created at a steady rate, each is deleted after its life
//	every interval: memory and CPU of each process, goroutines, objects, size of etcd ──▶ Run.Lines
//	Run.Lines ──stats.Grows──▶ Growths ──▶ verdict
package soak
