// Command lockstep-exec-io runs in the pods of workflows. It loads, saves and deletes artifacts
// (internal/workflow/artifacts), acts on objects of the cluster for resource templates
// (internal/workflow/resource), sends requests for http templates (internal/workflow/request), lists
// artifacts for data templates (internal/workflow/data), and calls executor plugins
// (internal/workflow/plugin).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"lockstep.dev/lockstep/internal/workflow/artifacts"
	"lockstep.dev/lockstep/internal/workflow/data"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
	"lockstep.dev/lockstep/internal/workflow/executor/incluster"
	"lockstep.dev/lockstep/internal/workflow/plugin"
	"lockstep.dev/lockstep/internal/workflow/request"
	"lockstep.dev/lockstep/internal/workflow/resource"
)

const usage = `lockstep-exec-io runs inside the pods of workflows; people do not call it. What it has to do is in ` + execapi.ArtifactPlanEnv + `.

  lockstep-exec-io init   bring input artifacts, before the container main
  lockstep-exec-io wait   save output artifacts, after it
  lockstep-exec-io gc     delete artifacts
  lockstep-exec-io resource
                          act on objects of the cluster, as ` + execapi.ResourcePlanEnv + ` says
  lockstep-exec-io http   send a request, as ` + execapi.RequestPlanEnv + ` says
  lockstep-exec-io tokens make tokens for plugins, before the container main
  lockstep-exec-io plugin have a plugin run a template, as ` + execapi.PluginPlanEnv + ` says
  lockstep-exec-io data   list artifacts, as ` + execapi.DataPlanEnv + ` says`

func main() {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	release()
	os.Exit(code)
}

// run does what args say, and returns the exit code. ctx ends at the kubelet's signal.
func run(ctx context.Context, args []string) int {
	if len(args) != 1 || !slices.Contains([]string{"init", "wait", "gc", "resource", "http", "data", "tokens", "plugin"}, args[0]) {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "resource":
		return act(ctx)
	case "http":
		return send(ctx)
	case "data":
		return list(ctx)
	case "tokens", "plugin":
		return plug(ctx, args[0] == "tokens")
	}
	plan, err := execapi.Decode[execapi.ArtifactPlan](execapi.ArtifactPlanEnv, os.Getenv(execapi.ArtifactPlanEnv))
	if err != nil {
		return fail(nil, err)
	}
	switch args[0] {
	case "init":
		if err := artifacts.Load(ctx, plan); err != nil {
			return fail(plan, err)
		}
	case "wait":
		wait(ctx, plan)
	case "gc":
		return collect(ctx, plan)
	}
	return 0
}

// wait saves the output artifacts. Then it waits for the kubelet's signal, because the kubelet
// restarts a sidecar that ends by itself.
func wait(ctx context.Context, plan *execapi.ArtifactPlan) {
	report := artifacts.Upload(context.WithoutCancel(ctx), plan, execapi.Dir, ctx.Done())
	if report.Failed {
		fmt.Fprintf(os.Stderr, "lockstep-exec-io: %s\n", report.Message)
	}
	say(plan, report)
	<-ctx.Done()
}

func fail(plan *execapi.ArtifactPlan, err error) int {
	fmt.Fprintf(os.Stderr, "lockstep-exec-io: %v\n", err)
	say(plan, execapi.Report{Failed: true, Message: execapi.Shorten(err.Error())})
	return execapi.ExitExecutor
}

// act runs a resource template.
func act(ctx context.Context) int {
	plan, err := execapi.Decode[execapi.ResourcePlan](execapi.ResourcePlanEnv, os.Getenv(execapi.ResourcePlanEnv))
	if err != nil {
		return fail(nil, err)
	}
	var report execapi.Report
	client, err := incluster.New()
	if err == nil {
		report.Parameters, err = resource.Act(ctx, client, plan, os.Stdout)
	}
	if err != nil { // the template has failed, not the executor
		fmt.Fprintf(os.Stderr, "lockstep-exec-io: %v\n", err)
		say(&execapi.ArtifactPlan{MaxMessage: plan.MaxMessage}, execapi.Report{Message: execapi.Shorten(err.Error())})
		return 1
	}
	text, err := executor.Compose(report, plan.MaxMessage, plan.Task, nil)
	if err != nil {
		return fail(nil, err)
	}
	write(text)
	return 0
}

// collect deletes artifacts.
func collect(ctx context.Context, plan *execapi.ArtifactPlan) int {
	report := artifacts.Delete(ctx, plan)
	say(plan, report)
	if report.Failed {
		fmt.Fprintf(os.Stderr, "lockstep-exec-io: %d artifacts are left: %s\n", len(report.Left), report.Message)
		return 1
	}
	return 0
}

// send runs an http template.
func send(ctx context.Context) int {
	plan, err := execapi.Decode[execapi.RequestPlan](execapi.RequestPlanEnv, os.Getenv(execapi.RequestPlanEnv))
	if err != nil {
		return fail(nil, err)
	}
	return told(request.Run(ctx, plan, nil))
}

// list runs a data template.
func list(ctx context.Context) int {
	plan, err := execapi.Decode[execapi.DataPlan](execapi.DataPlanEnv, os.Getenv(execapi.DataPlanEnv))
	if err != nil {
		return fail(nil, err)
	}
	return told(data.Run(ctx, plan, nil))
}

// plug makes the tokens of plugins, or runs a plugin template.
func plug(ctx context.Context, tokens bool) int {
	plan, err := execapi.Decode[execapi.PluginPlan](execapi.PluginPlanEnv, os.Getenv(execapi.PluginPlanEnv))
	if err == nil && tokens {
		err = plugin.Caller{}.Tokens(plan)
	}
	if err != nil {
		return fail(nil, err)
	}
	if tokens {
		return 0
	}
	return told(plugin.Caller{}.Run(ctx, plan))
}

// told writes a termination message, and what it says to the log. It returns the exit code.
func told(message string, code int) int {
	if report, ok := execapi.DecodeReport(message); ok && report.Message != "" {
		fmt.Fprintf(os.Stderr, "lockstep-exec-io: %s\n", report.Message)
	}
	write(message)
	return code
}

// say writes report as the termination message, within the limit of plan, which may be nil.
func say(plan *execapi.ArtifactPlan, report execapi.Report) {
	limit := execapi.MaxMessage
	if plan != nil && plan.MaxMessage > 0 {
		limit = plan.MaxMessage
	}
	text, fits := report.Encode(limit)
	if !fits {
		text, _ = execapi.Report{Failed: true, Message: "the list of artifacts is too long for a termination message"}.Encode(limit)
	}
	write(text)
}

func write(text string) {
	if err := os.WriteFile("/dev/termination-log", []byte(text), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "lockstep-exec-io: termination message: %v\n", err)
	}
}
