// Package daemon holds the commands that run for as long as the control plane does: the manager,
// and the agent of a node.
package daemon

import (
	"io"
	"log/slog"

	"k8s.io/klog/v2"
)

// logTo returns a log for a daemon that writes to out, and makes the API client use it, too.
func logTo(out io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	klog.SetSlogLogger(log)
	return log
}
