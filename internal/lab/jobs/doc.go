// Package jobs measures systems that run batch jobs: Lockstep or stock Kubernetes, each on fresh
// control planes or in an existing cluster. Measure makes the whole experiment. The documentation
// of package lab has a picture of it.
package jobs
