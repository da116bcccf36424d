package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/applications"
	"lockstep.dev/lockstep/internal/lab/cpus"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/replay"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/soak"
	"lockstep.dev/lockstep/internal/lab/workflows"
)

func newReport(s command.Streams) *cobra.Command {
	o := &output{}
	var out string
	cmd := &cobra.Command{
		Use:   "report DIR...",
		Short: "Render the results of 'bench run' again, or those of several runs as one report",
		Long: `Read run.json in folders of results, and write report.html again. Several folders become one report: equal runs
count as repeats, with mean, spread and confidence interval. They have to be of the same scenario and machine.

Exit codes: as of 'bench run'.`,
		Example: `  lockstep bench report out/bench-20260102-030405 --export markdown
  lockstep bench report out/monday out/tuesday --out out/both`,
		Args: command.SomeArgs("folder with results"),
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the report (default: the folder of the results; needed for several)")
	o.add(cmd)
	cmd.RunE = func(_ *cobra.Command, dirs []string) error {
		switch {
		case out == "" && len(dirs) > 1:
			return command.Usagef("--out: say where the report of %d folders is to be", len(dirs))
		case out == "":
			out = dirs[0]
		}
		first, err := series.Scenario(dirs[0])
		if err != nil {
			return err
		}
		for _, dir := range dirs[1:] {
			other, err := series.Scenario(dir)
			if err != nil {
				return err
			}
			if other != first {
				return fmt.Errorf("%s has results of %s and %s of %s: they have no common figures", dirs[0], first, dir, other)
			}
		}
		switch {
		case (first == jobs.ScenarioSweep || first == jobs.ScenarioTune) && len(dirs) > 1:
			return fmt.Errorf("%s: results of this scenario cannot be combined, because each has runs and settings of its own", first)
		case slices.Contains(batches, first) || first == jobs.ScenarioSweep || first == jobs.ScenarioTune:
			return again(s, o, dirs, out, func(r, other *jobs.Report) error { return r.Combine(&other.Report) })
		case strings.HasPrefix(first, "workflows-"):
			return again(s, o, dirs, out, func(r, other *workflows.Report) error { return r.Combine(&other.Report) })
		case slices.Contains(applications.Scenarios, first):
			return again(s, o, dirs, out, func(r, other *applications.Report) error { return r.Combine(&other.Report) })
		case first == soak.Scenario:
			return again(s, o, dirs, out, func(r, other *soak.Report) error { return r.Combine(&other.Report) })
		case first == replay.Scenario:
			return again(s, o, dirs, out, func(r, other *replay.Report) error { return r.Combine(&other.Report) })
		case first == cpus.Scenario:
			return again(s, o, dirs, out, func(r, other *cpus.Report) error { return r.Combine(&other.Report) })
		}
		return fmt.Errorf("%s has results of %q, which is no scenario of this program", dirs[0], first)
	}
	return cmd
}

// again reads the reports of folders, combines them, and delivers them as one.
func again[T any, R report[T]](s command.Streams, o *output, dirs []string, out string, combine func(r, other R) error) error {
	if err := parse[T, R](o); err != nil {
		return err
	}
	var all R
	for _, dir := range dirs {
		r := R(new(T))
		if err := series.Read(dir, r); err != nil {
			return err
		}
		if all == nil {
			all = r
			continue
		}
		if err := combine(all, r); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := series.Save(out, all, all.Page()); err != nil {
		return err
	}
	return deliver[T](s, o, out, all, nil)
}
