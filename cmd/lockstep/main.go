// Command lockstep is the only command that users call. Its verbs include the manager, the local
// control plane, the laboratory and the daily tools.
package main

import (
	"os"
	// schedules name time zones, and some images and machines lack the time zone database
	_ "time/tzdata"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

func main() {
	sandbox.Main(manager.Evaluators())
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
