package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// word is a flag's value that must be one of some words.
type word struct {
	value *string
	words []string
}

func (w word) String() string {
	if w.value == nil {
		return "" // pflag calls String of zero values
	}
	return *w.value
}

func (word) Type() string { return "string" }

func (w word) Set(text string) error {
	if !slices.Contains(w.words, text) {
		last := len(w.words) - 1
		if last == 0 {
			return fmt.Errorf("want %s", w.words[0])
		}
		return fmt.Errorf("want %s or %s", strings.Join(w.words[:last], ", "), w.words[last])
	}
	*w.value = text
	return nil
}

// wordFlag adds a flag whose value must be one of words. *value is the default, which need not be
// among them.
func wordFlag(cmd *cobra.Command, value *string, name, short, usage string, words ...string) {
	cmd.Flags().VarP(word{value, words}, name, short, usage)
	must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// dryRun is the value of kubectl's flag --dry-run.
type dryRun string

const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

// add adds the flag --dry-run, which takes "none" and words. Without a value the flag means
// words[0].
func (d *dryRun) add(cmd *cobra.Command, usage string, words ...string) {
	*d = dryRunNone
	wordFlag(cmd, (*string)(d), "dry-run", "", usage, append([]string{dryRunNone}, words...)...)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = words[0]
}

// addChecked adds the flag --dry-run for verbs that change objects in a cluster.
func (d *dryRun) addChecked(cmd *cobra.Command) {
	d.add(cmd, "only say what would be done: the API server checks it and keeps nothing", dryRunServer, dryRunClient)
}

// on reports whether the run must not change anything.
func (d dryRun) on() bool { return d.client() || d.server() }

func (d dryRun) client() bool { return d == dryRunClient }
func (d dryRun) server() bool { return d == dryRunServer }

// said returns done, a verb's word for its success, and marks it in a dry run.
func (d dryRun) said(done string) string {
	if d.on() {
		return done + " (dry run)"
	}
	return done
}

// group makes cmd the parent of verbs. Without a verb cmd itself is wrong usage.
func group(cmd *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(verbs...)
	cmd.Args = noArgs
	cmd.RunE = func(*cobra.Command, []string) error {
		var names []string
		for _, v := range verbs {
			if !v.Hidden {
				names = append(names, v.Name())
			}
		}
		return usageError{fmt.Errorf("say what to do: lockstep %s %s", strings.TrimPrefix(cmd.CommandPath(), "lockstep "), strings.Join(names, "|"))}
	}
	return cmd
}

// noArgs refuses positional arguments as wrong usage, and suggests what the user may have meant.
func noArgs(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(meant, " or "))
	}
	return usageError{err}
}

// outputFlag adds the flag -o, which takes one of words.
func outputFlag(cmd *cobra.Command, output *string, words ...string) {
	wordFlag(cmd, output, "output", "o", strings.Join(words, "|"), words...)
}
