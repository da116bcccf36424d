// Package observe turns what an API server shows into events for package analyse: its audit log,
// which has every write with the server's own clock, or a watch if there is no audit log. A watch
// shows only the resulting changes of jobs and pods, at the moment of delivery: it shows neither
// writes nor writers.
package observe
