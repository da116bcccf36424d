package bench

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/scenario"
)

// newTune names what limits a system.
func newTune(s command.Streams, version string) *cobra.Command {
	cmd, o := measurement(s, version)
	cmd.Use = "tune"
	cmd.Short = "Find out what limits a system, with the evidence, and print the settings to use"
	cmd.Long = `Run a short ladder of experiments on one system under one load: as it is, with half the load, with etcd that does not wait for
its disk, and with each of its settings raised. From these runs and from the metrics of the API server, etcd and the
controllers, name what limits the system (client limit, webhook, controller workers, API server CPU, etcd fsync, API server
flow control, scheduler), and print the settings to use, with the resource requests of the controllers by cluster size.

The settings that are raised are the numbers among the parameters of the system's file (docs/systems.md). An existing
cluster (--kubeconfig) is measured once, as it is; --metrics gives the metrics of its controllers.

Exit codes: as of 'bench run'.`
	cmd.Example = `  lockstep bench tune --system kubernetes --shapes 100x20
  lockstep bench tune --system ./controller.yaml
  lockstep bench tune --kubeconfig ~/.kube/config --system ./installed.yaml --metrics controller=http://127.0.0.1:8080/metrics`
	f := cmd.Flags()
	for _, name := range []string{"scenario", "scale", "repeat"} {
		command.Must(f.MarkHidden(name))
	}
	shapes := f.Lookup("shapes")
	command.Must(shapes.Value.(pflag.SliceValue).Replace([]string{tuneShape}))
	shapes.DefValue = "[" + tuneShape + "]"
	cmd.RunE = func(*cobra.Command, []string) error {
		if o.scenario != scenario.Batch || o.scale != 1 || o.Repeat != 1 {
			return command.Usagef("--scenario, --scale, --repeat: tune makes its own runs of the load of --shapes")
		}
		if !f.Changed("floor-tries") {
			o.FloorTries = 1
		}
		cfg, err := o.jobs(f.Lookup("gang").Value.String())
		if err != nil {
			return err
		}
		progress := newProgress(o.Err)
		cfg.OnStep, cfg.Progress = progress.step, progress.line
		return runSeries(o, &cfg, func(ctx context.Context) (*jobs.Report, error) {
			defer progress.end()
			return jobs.MeasureTune(ctx, cfg)
		})
	}
	return cmd
}

// tuneShape is the default of --shapes: long enough for the metrics, and short enough for five runs.
const tuneShape = "150x20"
