// Package observe turns what an API server shows into events for analyse: its audit log, which has every write with the
// server's own clock, or a watch where there is no audit log. A watch sees only what became of jobs and pods, at the moment when
// it was told: it knows no writes and no writers.
package observe
