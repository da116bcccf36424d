// Command lockstep is the one command that users see: the manager, the local control plane, the laboratory and the
// daily tools are its verbs.
package main

import (
	"os"

	"lockstep.dev/lockstep/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
