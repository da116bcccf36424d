package cli

import (
	"fmt"
	"hash/fnv"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/submit/workflows"
)

func newLogs(s streams) *cobra.Command {
	var (
		o               workflows.LogOptions
		grep, sinceTime string
		tail            int64
		noColor         bool
	)
	cmd := &cobra.Command{
		Use:   "logs WORKFLOW [POD]",
		Short: "Print what the pods of a workflow wrote",
		Long:  "Print what the pods of a workflow wrote, each line after the name of its pod.",
		Example: `  lockstep logs hello
  lockstep logs @latest -f --grep error`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usageError{fmt.Errorf("want a workflow, and maybe one of its pods")}
			}
			return nil
		},
	}
	c := newWFCommand(s, cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on until the workflow is completed")
	f.StringVarP(&o.Container, "container", "c", "main", "container of the pods")
	f.BoolVarP(&o.Previous, "previous", "p", false, "the container's run before")
	f.StringVarP(&o.Labels, "selector", "l", "", "only of pods with these labels")
	f.DurationVar(&o.Since, "since", 0, "only lines at most this old")
	f.StringVar(&sinceTime, "since-time", "", "only lines after this time (RFC 3339)")
	f.Int64Var(&tail, "tail", -1, "only this many last lines of each pod; -1 is all")
	f.BoolVar(&o.Timestamps, "timestamps", false, "put its time before each line")
	f.StringVar(&grep, "grep", "", "only lines that match this regular expression")
	f.BoolVar(&noColor, "no-color", false, "no colours, as $NO_COLOR does")
	names := c.completeWorkflows(workflows.Query{})
	cmd.ValidArgsFunction = names
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			var err error
			if o.Pod, err = podWords.name(args[1]); err != nil {
				return err
			}
		}
		if tail >= 0 {
			o.TailLines = &tail
		}
		if sinceTime != "" {
			t, err := time.Parse(time.RFC3339, sinceTime)
			if err != nil {
				return usageError{fmt.Errorf("--since-time=%s: want a time such as 2030-01-02T15:04:05Z", sinceTime)}
			}
			o.SinceTime = &t
		}
		if grep != "" {
			var err error
			if o.Grep, err = regexp.Compile(grep); err != nil {
				return usageError{fmt.Errorf("--grep: %w", err)}
			}
		}
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		name := args[0]
		if name == "@latest" {
			w, err := client.Get(ctx, namespace, name)
			if err != nil {
				return err
			}
			name = w.Name
		}
		return client.Logs(ctx, namespace, name, o, logLine(c.s.out, !noColor && o.Pod == ""))
	}
	return cmd
}

// podColors are the colours of pods' names. A hash of the name chooses one.
var podColors = []string{"31", "32", "33", "34", "35", "36", "91", "92", "93", "94", "95", "96"}

// logLine returns a function that prints a log line after its pod's name.
func logLine(out io.Writer, color bool) func(workflows.Line) {
	color = color && colors(out)
	return func(l workflows.Line) {
		pod := l.Pod
		if color {
			h := fnv.New32a()
			h.Write([]byte(pod))
			pod = "\x1b[" + podColors[h.Sum32()%uint32(len(podColors))] + "m" + pod + "\x1b[0m"
		}
		fmt.Fprintf(out, "%s: %s\n", pod, strings.TrimRight(l.Text, "\r"))
	}
}
