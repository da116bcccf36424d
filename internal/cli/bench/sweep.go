package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/threshold"
)

// newSweep is 'bench run' for all combinations of values of parameters.
func newSweep(s command.Streams, version string) *cobra.Command {
	cmd, o := measurement(s, version)
	cmd.Use = "sweep --vary PARAMETER=VALUE,VALUE..."
	cmd.Short = "Vary parameters of batch jobs, systems and control planes, and find the best values"
	cmd.Long = `Measure a load with each combination of values of the parameters, --repeat times each. The order is random, so that a slow
hour of the machine affects no value more than another; one run is made before and discarded. The page has the curve of a
sweep over one parameter, and a map of one over two, with the best setting and those that do not differ from it beyond the error.

Parameters: ` + strings.Join(jobs.Parameters(), ", ") + `
(FLAG is a flag of Lockstep's manager, PARAMETER a parameter of the file of a system). Other settings are flags.

Before the first run the command says what time and disk all runs take, and refuses them if the disk has less. An interrupted
sweep is continued by --resume.

Exit codes: as of 'bench run'.`
	cmd.Example = `  lockstep bench sweep --vary writer-concurrency=0,1,4,16,64,256 --shapes 500x20 --repeat 3
  lockstep bench sweep --vary writer-concurrency=4,64 --vary nodes=100,1000,5000 --figure latencyMs.p99
  lockstep bench sweep --system ./controller.yaml --vary system.workers=1,2,4,8
  lockstep bench sweep --resume out/bench-20260102-030405`
	var vary []string
	var resume string
	var seed uint64
	sweep := jobs.Sweep{}
	f := cmd.Flags()
	f.StringArrayVar(&vary, "vary", nil, "a parameter and its values, PARAMETER=VALUE,VALUE...; several make all combinations")
	f.StringVar(&sweep.Figure, "figure", "scheduleSeconds", "the figure to minimise, named as in -o json")
	f.Uint64Var(&seed, "seed", 0, "determines the order of the runs; 0 draws a seed, which is printed")
	f.IntVar(&sweep.Discarded, "discard", 1, "runs that are made first and discarded")
	f.StringVar(&resume, "resume", "", "folder of a sweep that was interrupted, to make its missing runs; no other flags")
	command.Must(f.MarkHidden("scenario"))
	command.Must(f.MarkHidden("scale"))
	cmd.RunE = func(*cobra.Command, []string) error {
		var resumed *jobs.Report
		if resume != "" {
			var err error
			if resumed, err = o.resume(resume); err != nil {
				return err
			}
		}
		if o.scenario != scenario.Batch || o.scale != 1 {
			return command.Usagef("--scenario, --scale: a sweep varies the load of --shapes")
		}
		if o.withoutFloor = o.withoutFloor || !f.Changed("floor-concurrency") && !f.Changed("floor-tries") && !strings.Contains(sweep.Figure, "loor"); o.Kubeconfig != "" {
			return command.Usagef("--kubeconfig: a sweep starts its own control planes")
		}
		for _, text := range vary {
			name, values, ok := strings.Cut(text, "=")
			if !ok || values == "" {
				return command.Usagef("--vary=%s: want PARAMETER=VALUE,VALUE...", text)
			}
			sweep.Parameters = append(sweep.Parameters, jobs.Parameter{Name: name, Values: strings.Split(values, ",")})
		}
		if sweep.Discarded < 0 || sweep.Discarded > 5 {
			return command.Usagef("--discard=%d: want 0 to 5", sweep.Discarded)
		}
		if err := (threshold.Threshold{Figure: sweep.Figure, Op: "<"}).Check(reflect.TypeFor[*jobs.Run]()); err != nil {
			return command.Usagef("--figure: there is no figure %q", sweep.Figure)
		}
		if sweep.Seed = seed; seed == 0 {
			sweep.Seed = rand.Uint64N(1_000_000)
		}
		cfg, err := o.jobs(f.Lookup("gang").Value.String())
		if err != nil {
			return err
		}
		if err := sweep.Check(cfg); err != nil {
			return command.Usage(err)
		}
		plan := map[string]string{"seed": fmt.Sprint(sweep.Seed)}
		f.Visit(func(flag *pflag.Flag) {
			if v, ok := flag.Value.(pflag.SliceValue); ok {
				plan[flag.Name] = strings.Join(v.GetSlice(), "\n")
			} else {
				plan[flag.Name] = flag.Value.String()
			}
		})
		plan["seed"] = fmt.Sprint(sweep.Seed)
		delete(plan, "resume")
		delete(plan, "file") // what it sets is in the plan
		if err := jobs.SavePlan(o.OutDir, plan); err != nil {
			return err
		}
		progress := newProgress(o.Err)
		cfg.OnStep, cfg.Progress = progress.step, progress.line
		cfg.Progress(fmt.Sprintf("seed %d; to continue after an interruption: lockstep bench sweep --resume %s", sweep.Seed, o.OutDir))
		return runSeries(o, &cfg, func(ctx context.Context) (*jobs.Report, error) {
			defer progress.end()
			return jobs.MeasureSweep(ctx, cfg, sweep, resumed)
		})
	}
	return cmd
}

// resume sets the flags of an interrupted sweep, and returns its report.
func (f *flags) resume(dir string) (*jobs.Report, error) {
	var others []string
	f.cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Name != "resume" {
			others = append(others, "--"+flag.Name)
		}
	})
	if len(others) > 0 {
		return nil, command.Usagef("--resume: the flags are those of the sweep in %s, without %s", dir, strings.Join(others, ", "))
	}
	plan, err := jobs.ReadPlan(dir)
	if err != nil {
		return nil, err
	}
	for name, value := range plan {
		flag := f.cmd.Flags().Lookup(name)
		if flag == nil {
			return nil, fmt.Errorf("%s: unknown flag %q", filepath.Join(dir, jobs.PlanFile), name)
		}
		if v, ok := flag.Value.(pflag.SliceValue); ok {
			err = v.Replace(strings.Split(value, "\n"))
			flag.Changed = true
		} else {
			err = f.cmd.Flags().Set(name, value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", filepath.Join(dir, jobs.PlanFile), name, err)
		}
	}
	f.OutDir = dir
	rep := &jobs.Report{}
	err = series.Read(dir, rep)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it was interrupted before its first run
	}
	return rep, err
}
