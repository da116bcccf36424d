package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// word is the value of a flag that takes one of some words.
type word struct {
	value *string
	words []string
}

func (w word) String() string {
	if w.value == nil {
		return "" // pflag asks zero values
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

// wordFlag adds a flag that takes one of some words; value is its default, which need not be among them.
func wordFlag(cmd *cobra.Command, value *string, name, short, usage string, words ...string) {
	cmd.Flags().VarP(word{value, words}, name, short, usage)
	must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// outputFlag adds -o with the words that it takes.
func outputFlag(cmd *cobra.Command, output *string, words ...string) {
	wordFlag(cmd, output, "output", "o", strings.Join(words, "|"), words...)
}
