// Package jobs measures systems that run batch jobs: Lockstep, stock Kubernetes, or what runs in an
// existing cluster. Measure is the whole experiment; the picture is in package lab.
package jobs
