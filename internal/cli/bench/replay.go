package bench

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/replay"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/lab/trace"
)

// replayBench holds the flags of the scenario replay.
type replayBench struct {
	cfg  replay.Config
	path string
	jobs int
}

func (b *replayBench) add(flags *flags) {
	f := flags.cmd.Flags()
	f.StringVar(&b.path, "trace", "", "of replay: file with the load: CSV with the header arrival,pods,duration (of 'bench record'), Standard Workload Format, or batch_task.csv of Alibaba's cluster-trace-v2018; possibly with gzip")
	f.Float64Var(&b.cfg.Speed, "trace-speed", 1, "of replay: how many times as fast as in the trace jobs arrive and end")
	f.IntVar(&b.jobs, "trace-jobs", 0, "of replay: only so many of the first jobs; 0 is all")
}

// run replays a trace.
func (b *replayBench) run(f *flags, gang string) (err error) {
	cfg := b.cfg
	switch {
	case b.path == "":
		return command.Usagef("--trace: is required")
	case b.jobs < 0:
		return command.Usagef("--trace-jobs=%d: is negative", b.jobs)
	case gang != "true" && gang != "false":
		return command.Usagef("--gang=%s: want true or false", gang)
	}
	cfg.Gang = gang == "true"
	if cfg.Trace, err = readTrace(b.path); err != nil {
		return err
	}
	if b.jobs > 0 && b.jobs < len(cfg.Trace.Jobs) {
		cfg.Trace.Jobs = cfg.Trace.Jobs[:b.jobs]
	}
	cfg.TraceName = filepath.Base(b.path)
	if cfg.Config, err = f.series(); err != nil {
		return err
	}
	if cfg.Parameters, err = command.KeyValues("set", f.parameters); err != nil {
		return err
	}
	cfg.Systems = f.Systems
	return runSeries(f, &cfg, func(ctx context.Context) (*replay.Report, error) { return replay.Measure(ctx, cfg) })
}

func readTrace(path string) (*trace.Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := trace.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// newRecord writes the trace of a load that was observed.
func newRecord(s command.Streams) *cobra.Command {
	var name, out string
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Write the load of a run, or of an API server's audit log, as a trace for 'bench run --scenario replay'",
		Long: `Read the events of a run (events.csv.gz in a folder of results) or an audit log of an API server, possibly compressed with
gzip, and write when each job arrived, how many pods it had and how long it ran: a CSV with the header arrival,pods,duration, in
seconds. A job lasts as long as the longest of its pods ran that ended by themselves, or, if none did, from its last pod's node
until it, or the first of its pods, was deleted. The duration is 0 if no end was observed: the job then stays until the end of
the replay.

--system says which objects are jobs and which pods are theirs. In audit logs of other API servers than those of 'lockstep up'
the ends of pods are not visible, and pods that are created with their node do not have it: only bindings and deletions count.

Exit codes: 0 the trace is written; 1 it is not; 2 wrong usage.`,
		Example: `  lockstep bench record out/bench-20260102-030405/01-lockstep-500x20-gang/events.csv.gz --out trace.csv
  lockstep bench record audit.log --system kubernetes > trace.csv`,
		Args: command.OneArg("FILE"),
	}
	f := cmd.Flags()
	f.StringVar(&name, "system", "lockstep", "whose jobs: "+strings.Join(system.Names(), ", ")+", or the file of a system")
	f.StringVar(&out, "out", "", "file for the trace (default: standard output)")
	command.CompleteWords(cmd, "system", system.Names()...)
	cmd.RunE = func(_ *cobra.Command, args []string) (err error) {
		sys, err := system.New(name, system.Options{})
		if err != nil {
			return command.Usagef("--system: %w", err)
		}
		events, err := readEvents(args[0])
		if err != nil {
			return err
		}
		t, err := trace.Record(events, sys.Jobs().GroupResource().String(), func(pod string) (string, bool) {
			job, _ := sys.Identify(pod)
			return job, job != "" && sys.OfLoad(pod)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		fmt.Fprintf(s.Err, "%d jobs with %d pods in %.0f s; %d without pods are left out\n", len(t.Jobs), t.Pods(), t.Length(), t.Skipped)
		if out == "" {
			return t.Write(s.Out)
		}
		file, err := os.Create(out)
		if err != nil {
			return err
		}
		return errors.Join(t.Write(file), file.Close())
	}
	return cmd
}

// readEvents reads the events file of a run, or an audit log.
func readEvents(path string) (out []analyse.Event, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	if magic, err := r.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r = bufio.NewReaderSize(z, 1<<20)
	}
	if first, err := r.Peek(len(observe.EventsHeader)); err == nil && string(first) == observe.EventsHeader {
		if out, err = observe.ReadEvents(r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return out, nil
	}
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		e, ok, err := observe.ParseAudit(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if ok {
			out = append(out, e)
		}
	}
	return out, nil
}
