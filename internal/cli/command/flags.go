package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/egress"
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

// WordFlag adds a flag whose value must be one of words. The default is *value, which need not be
// one of them.
func WordFlag(cmd *cobra.Command, value *string, name, short, usage string, words ...string) {
	cmd.Flags().VarP(word{value, words}, name, short, usage)
	CompleteWords(cmd, name, words...)
}

// CompleteWords completes the values of a flag with words.
func CompleteWords(cmd *cobra.Command, flag string, words ...string) {
	Must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// OutputFlag adds the flag -o, which takes one of words.
func OutputFlag(cmd *cobra.Command, output *string, words ...string) {
	WordFlag(cmd, output, "output", "o", strings.Join(words, "|"), words...)
}

// DryRun is the value of kubectl's flag --dry-run.
type DryRun string

// Values of --dry-run.
const (
	DryRunNone   = "none"
	DryRunClient = "client"
	DryRunServer = "server"
)

// Add adds the flag --dry-run, which takes "none" and words. Without a value the flag means
// words[0].
func (d *DryRun) Add(cmd *cobra.Command, usage string, words ...string) {
	*d = DryRunNone
	WordFlag(cmd, (*string)(d), "dry-run", "", usage, append([]string{DryRunNone}, words...)...)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = words[0]
}

// AddChecked adds the flag --dry-run for verbs that change objects in a cluster.
func (d *DryRun) AddChecked(cmd *cobra.Command) {
	d.Add(cmd, "only say what would be done: the API server checks it and keeps nothing", DryRunServer, DryRunClient)
}

// AddPrinted adds the flag --dry-run for verbs that send manifests. Without a value the flag makes
// the verb print what it would send; sent is the verb's word for sending.
func (d *DryRun) AddPrinted(cmd *cobra.Command, sent string) {
	d.Add(cmd, `"client": print what would be `+sent+`; "server": have it checked and nothing kept`, DryRunClient,
		DryRunServer)
}

// On reports whether the run must not change anything.
func (d DryRun) On() bool { return d.Client() || d.Server() }

// Client reports whether nothing may be sent to the API server.
func (d DryRun) Client() bool { return d == DryRunClient }

// Server reports whether the API server checks what is sent and keeps nothing.
func (d DryRun) Server() bool { return d == DryRunServer }

// Said returns done, a verb's word for its success, with a mark in a dry run.
func (d DryRun) Said(done string) string {
	if d.On() {
		return done + " (dry run)"
	}
	return done
}

// ApplicationFlags adds the flags about the rights of applications, which the commands 'manager'
// and 'install' share.
func ApplicationFlags(cmd *cobra.Command, allowRequestsTo *[]string, actAsManager *bool) {
	f := cmd.Flags()
	f.StringSliceVar(allowRequestsTo, strings.TrimPrefix(egress.Flag, "--"), nil,
		"what applications, probes of JobFlows and looks at images of workflows may reach beside public addresses, "+
			"for charts, requests, registries and e-mails: networks (10.0.0.0/8), addresses, host names (charts.example.com, *.apps.svc.cluster.local)")
	f.BoolVar(actAsManager, "applications-act-as-manager", false,
		"UNSAFE: applications act with the manager's rights instead of those of who wrote them, so that whoever may write one has them all")
	f.Bool("multi-tenant", true, "")
	Must(f.MarkDeprecated("multi-tenant",
		"applications act with the rights of who wrote them unless --applications-act-as-manager says otherwise"))
}
