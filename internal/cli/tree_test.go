package cli

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// leaves are the commands that do something and that help shows.
func leaves(cmd *cobra.Command) []*cobra.Command {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return nil
	}
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var out []*cobra.Command
	for _, c := range cmd.Commands() {
		out = append(out, leaves(c)...)
	}
	return out
}

func silent() streams { return streams{strings.NewReader(""), io.Discard, io.Discard} }

func TestHelpShowsExamplesThatAreRight(t *testing.T) {
	for _, cmd := range leaves(newRoot(silent())) {
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("'%s --help' lacks a description or an example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			_, call, found := strings.Cut(line, "lockstep ")
			if !found {
				t.Errorf("%s: an example does not call lockstep: %s", cmd.CommandPath(), line)
				continue
			}
			call, _, _ = strings.Cut(call, " > ")
			// Each on a tree of its own: flags keep what they were set to.
			called, rest, err := newRoot(silent()).Find(strings.Fields(call))
			if err == nil {
				err = called.ParseFlags(rest)
			}
			if err == nil {
				err = called.ValidateArgs(called.Flags().Args())
			}
			if err != nil || called.CommandPath() != cmd.CommandPath() {
				t.Errorf("%s: the example calls %s: %v: %s", cmd.CommandPath(), called.CommandPath(), err, line)
			}
		}
	}
}

func TestFlagsOfWordsAreCheckedAndCompleted(t *testing.T) {
	for _, cmd := range leaves(newRoot(silent())) {
		for _, name := range []string{"output", "dry-run", "phase"} {
			flag := cmd.Flags().Lookup(name)
			if flag == nil || flag.Value.Type() == "bool" {
				continue
			}
			if _, found := cmd.GetFlagCompletionFunc(name); !found {
				t.Errorf("%s --%s is not completed", cmd.CommandPath(), name)
			}
			if flag.Value.Set("nonsense") == nil {
				t.Errorf("%s --%s takes anything", cmd.CommandPath(), name)
			}
		}
	}
}

func TestWrongArgumentsAreErrorsOfUsage(t *testing.T) {
	for _, cmd := range leaves(newRoot(silent())) {
		for _, args := range [][]string{nil, {"a", "b", "c", "d"}} {
			var usage usageError
			if err := cmd.ValidateArgs(args); err != nil && !errors.As(err, &usage) {
				t.Errorf("%s with %d arguments: %v is not told as wrong usage", cmd.CommandPath(), len(args), err)
			}
		}
	}
}
