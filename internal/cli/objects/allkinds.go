package objects

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
)

// branch is the part of a verb for workflows that is for other kinds.
type branch struct {
	about string   // a line for the help text
	both  []string // the verb's flags that other kinds have, too
	// add adds flags that only other kinds have.
	add func(*pflag.FlagSet)
	// selected reports whether the flags select objects. Optional.
	selected func(*pflag.FlagSet) bool
	// always reports whether workflows take the branch, too. Optional.
	always func(*pflag.FlagSet) bool
	run    func(cmd *cobra.Command, kube *genericclioptions.ConfigFlags, args []string) error
}

// ForAllKinds makes verbs of package workflows act on objects of all kinds. It returns verbs.
func ForAllKinds(s command.Streams, verbs []*cobra.Command) []*cobra.Command {
	branches := map[string]*branch{
		"delete": deletion(s), "wait": waiting(s), "logs": logs(s),
		"suspend": ordering(s, "suspend"), "resume": ordering(s, "resume"), "stop": ordering(s, "stop"), "terminate": ordering(s, "terminate"),
	}
	for _, cmd := range verbs {
		if b := branches[cmd.Name()]; b != nil {
			b.addTo(cmd)
		}
	}
	return verbs
}

// addTo makes cmd take the branch for objects of other kinds, and refuse flags that have no effect.
func (b *branch) addTo(cmd *cobra.Command) {
	forAll := map[string]bool{"kubeconfig": true, "context": true, "namespace": true, "help": true} // true: for all kinds
	cmd.Flags().VisitAll(func(f *pflag.Flag) { forAll[f.Name] = forAll[f.Name] || false })
	for _, name := range b.both {
		forAll[name] = true
	}
	if b.add != nil {
		b.add(cmd.Flags())
	}
	// others reports whether args are of other kinds. A flag that is not for them is an error. If
	// asking is not nil, its cluster is asked about unknown words.
	others := func(args []string, asking *cobra.Command) (of bool, err error) {
		selected := b.selected != nil && b.selected(cmd.Flags())
		of = names.AreOfOtherKinds(asking, args, selected) || b.always != nil && b.always(cmd.Flags())
		cmd.Flags().Visit(func(f *pflag.Flag) {
			switch all, workflows := forAll[f.Name]; {
			case all:
			case of && workflows:
				err = command.Usagef("--%s is for workflows", f.Name)
			case !of && !workflows:
				err = command.Usagef("--%s is not for workflows", f.Name)
			}
		})
		return of, err
	}
	args, before, run := cmd.Args, cmd.PreRunE, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, list []string) error {
		if of, err := others(list, nil); of || err != nil {
			return err
		}
		return args(cmd, list)
	}
	cmd.PreRunE = func(cmd *cobra.Command, list []string) error {
		if of, err := others(list, nil); of || err != nil || before == nil {
			return err
		}
		return before(cmd, list)
	}
	cmd.RunE = func(cmd *cobra.Command, list []string) error {
		of, err := others(list, cmd)
		if err != nil {
			return err
		}
		if !of {
			return run(cmd, list)
		}
		kube := command.KubeOf(cmd)
		if _, err := factory(kube); err != nil {
			return err
		}
		return b.run(cmd, kube, names.InFull(list))
	}
	if cmd.Long == "" {
		cmd.Long = cmd.Short + "."
	}
	cmd.Long += "\n\n" + b.about
}
