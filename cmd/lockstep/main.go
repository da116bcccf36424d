// Command lockstep is the only command that users call. Its verbs include the manager, the local
// control plane, the laboratory and the daily tools.
package main

import (
	"log/slog"
	"os"
	// schedules name time zones, and some images and machines lack the time zone database
	_ "time/tzdata"

	"k8s.io/klog/v2"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

func main() {
	sandbox.Main(manager.Evaluators())
	// The API client reports failures as errors; its log lines are discarded. Long-running verbs
	// set a log of their own.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
