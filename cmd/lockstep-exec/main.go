// Command lockstep-exec runs the command of a workflow's container; see internal/workflow/executor.
package main

import (
	"fmt"
	"os"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
)

const usage = `lockstep-exec runs inside the pods of workflows; people do not call it.

  lockstep-exec run -- COMMAND [ARGUMENT...]   run a command as the plan in ` + execapi.PlanEnv + ` says
  lockstep-exec install FILE                   copy this program to FILE`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	switch {
	case len(args) >= 3 && args[0] == "run" && args[1] == "--":
		plan, err := execapi.Decode[execapi.Plan](execapi.PlanEnv, os.Getenv(execapi.PlanEnv))
		if err != nil {
			return fail(err)
		}
		return executor.Run(plan, args[2:], executor.Config{})
	case len(args) == 2 && args[0] == "install":
		if err := executor.Install("/proc/self/exe", args[1]); err != nil {
			return fail(err)
		}
		return 0
	}
	fmt.Fprintln(os.Stderr, usage)
	return 2
}

func fail(err error) int {
	fmt.Fprintf(os.Stderr, "lockstep-exec: %v\n", err)
	return execapi.ExitExecutor
}
