// Package jobs measures systems that run batch jobs: Lockstep or stock Kubernetes, each on fresh
// control planes or in an existing cluster. Measure makes the whole experiment. The documentation
// of package lab has a picture of it.
//
// The charts of the report's page are drawn by uPlot (assets/uPlot.iife.min.js, MIT licence,
// assets/uPlot.LICENSE), which is embedded: the page loads nothing from the network.
package jobs
