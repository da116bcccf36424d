package local

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// statusReport is the JSON and YAML form of `status`.
type statusReport struct {
	SchemaVersion string             `json:"schemaVersion"`
	Clusters      []*supervise.State `json:"clusters"`
}

// NewStatus returns the command 'status'.
func NewStatus(s command.Streams) *cobra.Command {
	var name, output string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the local control planes and their components",
		Example: "  lockstep status\n  lockstep status --name try -o wide",
		Long: `Show the local control planes, or the one that --name names, with their components' health and use of the machine.
The exit code is 1 when there is none, or one of them is not ready.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := []string{cmp.Or(name, defaultCluster)}
			if name == "" {
				all, err := supervise.Names()
				if err != nil {
					return err
				}
				if len(all) > 0 {
					names = all
				}
			}
			report := statusReport{SchemaVersion: "v1"}
			var failed error
			for _, n := range names {
				state, err := supervise.Get(cmd.Context(), n)
				if err != nil {
					return clusterError(n, err)
				}
				report.Clusters = append(report.Clusters, state)
				if state.Phase != supervise.PhaseReady {
					failed = errors.Join(failed, fmt.Errorf("cluster %q is %s", n, state.Phase))
				}
			}
			return errors.Join(printStatus(s.Out, report, output), failed)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster; without it all")
	command.OutputFlag(cmd, &output, "json", "yaml", "wide")
	return cmd
}

func printStatus(out io.Writer, report statusReport, output string) error {
	if printed, err := command.Print(out, output, report); printed {
		return err
	}
	w := command.Columns(out) // fits into 80 columns
	for i, c := range report.Clusters {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printCluster(w, c, output == "wide")
	}
	return w.Flush()
}

func printCluster(w io.Writer, c *supervise.State, wide bool) {
	fmt.Fprintln(w, "CLUSTER\tSTATUS\tNODES\tETCD\tSERVER\tAGE")
	nodes := fmt.Sprint(c.Nodes.Count)
	if c.RealNodes > 0 {
		nodes += fmt.Sprintf(" + %d real", c.RealNodes)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n\n", c.Name, c.Phase, nodes, describeEtcd(c.Durable), c.Server,
		age(c.CreatedAt))
	fmt.Fprint(w, "COMPONENT\tHEALTH\tPID\tPORT\tRESTARTS\tCPU\tMEMORY\tAGE")
	if wide {
		fmt.Fprint(w, "\tPEAK\tLAST-EXIT\tLOG")
	}
	fmt.Fprintln(w)
	for _, p := range c.Components {
		health := "ok"
		if !p.Healthy {
			health = p.Health
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.1fs\t%s\t%s", p.Name, health, p.PID, p.Port, p.Restarts, p.CPUSeconds,
			mebibytes(p.RSSBytes), age(p.StartedAt))
		if wide {
			fmt.Fprintf(w, "\t%s\t%s\t%s", mebibytes(p.PeakRSSBytes), orNone(p.LastExit), p.Log)
		}
		fmt.Fprintln(w)
	}
	if n := len(c.Deaths); n > 0 {
		last := c.Deaths[n-1]
		fmt.Fprintf(w, "\nLast death: %s %s ago, %s.\n", last.Component, age(last.Time), last.Reason)
	}
	if wide {
		fmt.Fprintf(w, "\nKubeconfig: %s\nAudit log:  %s\n", c.Kubeconfig, c.AuditLog)
	}
}

func age(t time.Time) string {
	if t.IsZero() {
		return "<none>"
	}
	return duration.HumanDuration(time.Since(t))
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n>>20) }
