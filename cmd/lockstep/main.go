// Command lockstep is the one command that users see: the manager, the local control plane, the laboratory and the
// daily tools are its verbs.
package main

import (
	"os"
	_ "time/tzdata" // schedules name time zones, and not every image and machine knows them

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

func main() {
	sandbox.Main(manager.Evaluators())
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
