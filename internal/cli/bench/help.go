package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep.dev/lockstep/internal/cli/command"
)

// about has a sentence about each scenario.
var about = map[string]string{
	"batch":             "jobs of the shapes that you name, all created at once",
	"batch-shapes":      "10,000 pods in ten shapes, from many small jobs to one large one",
	"batch-workers":     "one shape under fixed numbers of writes in flight and the adaptive one: the V-curve",
	"admission":         "one large job whose pods are admitted by nothing, by CEL rules, or by webhooks",
	"contention":        "pods that are created and then bound against pods that are created bound",
	"mixed":             "small jobs behind a large one: how long do they wait?",
	"queues":            "tenants with queues of different weights: does each get its share?",
	"enqueue":           "more jobs than the nodes hold: where do their pods wait?",
	"client-limits":     "the same load with different QPS and burst of the clients",
	"foreign-pods":      "pods of Deployments and plain pods, which other controllers create",
	"rate":              "jobs at a rising rate until the system falls behind",
	"queued":            "everything submitted at once",
	"workflows-queued":  "workflows that are all created at once",
	"workflows-rate":    "workflows at a rising rate until the system falls behind",
	"cpu-topology":      "programs on a real node, pinned to CPUs and not",
	"apps-small":        "small applications that are deployed at once",
	"apps-large":        "applications of many components",
	"apps-updates":      "applications that are changed again and again",
	"apps-hold":         "applications that rest: what do they cost?",
	"apps-multicluster": "applications in several clusters, near and far, one of them unreachable",
	"apps-shards":       "several managers that share the applications",
	"replay":            "the load of a trace: jobs arrive, run and end as in it",
	"soak":              "steady churn for a long time: does anything grow without bound?",
}

// newScenarios lists the scenarios.
func newScenarios(s command.Streams) *cobra.Command {
	return &cobra.Command{
		Use:     "scenarios",
		Short:   "List the scenarios of 'bench run'",
		Example: "  lockstep bench scenarios",
		Args:    command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := command.Columns(s.Out)
			fmt.Fprintln(w, "SCENARIO\tWHAT IT DOES")
			for _, name := range scenarios {
				fmt.Fprintf(w, "%s\t%s\n", name, about[name])
			}
			return w.Flush()
		},
	}
}

// groupHelp makes the help of a command show its flags by scenario. A flag of a scenario has a text
// that begins with "of SCENARIO: ".
func groupHelp(cmd *cobra.Command) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		w := cmd.OutOrStderr()
		fmt.Fprintf(w, "Usage:\n  %s\n", cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
		}
		groups := map[string]*pflag.FlagSet{}
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			scenario, text := scenarioOf(flag.Usage)
			if groups[scenario] == nil {
				groups[scenario] = pflag.NewFlagSet(scenario, pflag.ContinueOnError)
			}
			shown := *flag
			shown.Usage = text
			groups[scenario].AddFlag(&shown)
		})
		// The flags of all scenarios, whose name is empty, come first.
		for _, name := range slices.Sorted(maps.Keys(groups)) {
			if !groups[name].HasAvailableFlags() {
				continue
			}
			title := "Flags"
			if name != "" {
				title = "Flags of " + name
			}
			fmt.Fprintf(w, "\n%s:\n%s", title, groups[name].FlagUsages())
		}
		if cmd.HasAvailableInheritedFlags() {
			fmt.Fprintf(w, "\nGlobal flags:\n%s", cmd.InheritedFlags().FlagUsages())
		}
		return nil
	})
}

// scenarioOf splits the text of a flag into the scenarios that it is for and the rest.
func scenarioOf(usage string) (scenario, text string) {
	if rest, ok := strings.CutPrefix(usage, "of "); ok {
		if scenario, text, ok := strings.Cut(rest, ": "); ok {
			return scenario, text
		}
	}
	return "", usage
}
