package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// takes says how a verb takes objects by name: which kind, and whether other arguments follow the
// first name.
type takes struct {
	kind kindWords
	// one is true if only the first argument names an object.
	one bool
	// offline is true if the verb needs no cluster. It then does not ask a cluster for its kinds.
	offline bool
	// said is true if the verb is below a command that names the kind, such as 'lockstep app': a
	// word before which no kind is expected is then a name, whatever else it may mean.
	said bool
}

// takesNames says for each verb that takes objects of one kind by name how it does so. 'lockstep
// get' is absent because it takes any kind.
var takesNames = map[string]takes{
	"delete": {kind: workflowWords}, "suspend": {kind: workflowWords}, "resume": {kind: workflowWords}, "stop": {kind: workflowWords},
	"terminate": {kind: workflowWords}, "retry": {kind: workflowWords}, "resubmit": {kind: workflowWords}, "wait": {kind: workflowWords},
	"watch": {kind: workflowWords}, "node set": {kind: workflowWords}, "logs": {kind: workflowWords, one: true},
	"archive get": {kind: workflowWords, offline: true}, "archive delete": {kind: workflowWords, offline: true},
	"archive retry": {kind: workflowWords, offline: true}, "archive resubmit": {kind: workflowWords, offline: true},

	"template get": {kind: templateWords}, "template delete": {kind: templateWords},
	"cluster-template get": {kind: clusterTemplateWords}, "cluster-template delete": {kind: clusterTemplateWords},
	"cron get": {kind: cronWords}, "cron delete": {kind: cronWords}, "cron suspend": {kind: cronWords}, "cron resume": {kind: cronWords},
	"cron trigger": {kind: cronWords},

	"app delete": {kind: applicationWords}, "app revisions": {kind: applicationWords}, "app diff": {kind: applicationWords},
	"app status": {kind: applicationWords}, "app logs": {kind: applicationWords}, "app rollback": {kind: applicationWords},
	"app exec": {kind: applicationWords, one: true, offline: true}, "app port-forward": {kind: applicationWords, one: true, offline: true},
	"app workflow suspend": {kind: applicationWords}, "app workflow resume": {kind: applicationWords}, "app workflow terminate": {kind: applicationWords},
	"app workflow restart": {kind: applicationWords}, "app workflow rollback": {kind: applicationWords},

	"cluster labels": {kind: clusterWords, one: true, offline: true}, "cluster detach": {kind: clusterWords}, "cluster probe": {kind: clusterWords},
	"topology show": {kind: nodeWords, offline: true}, "topology repack": {kind: nodeWords, offline: true},
}

// readNames changes every verb of takesNames below cmd: users may write kinds with the names, and
// the verb receives only names.
func readNames(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		readNames(c)
	}
	n, ok := takesNames[strings.TrimPrefix(cmd.CommandPath(), "lockstep ")]
	if !ok || cmd.RunE == nil {
		return
	}
	group, _, below := strings.Cut(strings.TrimPrefix(cmd.CommandPath(), "lockstep "), " ")
	n.said = below && n.kind.has(group)
	check, before, run := cmd.Args, cmd.PreRunE, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		bare, err := n.read(args, nil)
		if err == nil && check != nil {
			err = check(cmd, bare)
		}
		return err
	}
	if before != nil {
		cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
			bare, err := n.read(args, nil)
			if err != nil {
				return err
			}
			return before(cmd, bare)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		served := func(word string) bool { return servedKind(cmd, word) }
		if n.offline {
			served = nil
		}
		bare, err := n.read(args, served)
		if err != nil {
			return err
		}
		return run(cmd, bare)
	}
}

// read returns args with KIND/NAME and KIND NAME replaced by the objects' names. A word for a kind
// is not read as a name: an argument that may be either is an error, unless n.said and nothing that
// the word may be the kind of follows. served reports whether the
// cluster has a kind for a word that is not among knownKinds; if it is nil, no cluster is asked.
func (n takes) read(args []string, served func(word string) bool) ([]string, error) {
	if len(args) == 0 {
		return args, nil
	}
	if n.kind.has(args[0]) && len(args) > 1 {
		rest := args[1:]
		for _, name := range rest {
			if strings.Contains(name, "/") && !n.one {
				return nil, usageError{fmt.Errorf("%s %s: write %s NAME... or %s/NAME..., not both", args[0], name, args[0], args[0])}
			}
		}
		return rest, nil
	}
	named, rest := args, []string(nil)
	if n.one {
		named, rest = args[:1], args[1:]
	}
	out := make([]string, 0, len(args))
	for i, arg := range named {
		if n.said && !strings.Contains(arg, "/") && (i > 0 || len(named) == 1) {
			out = append(out, arg)
			continue
		}
		name, err := n.kind.name(arg)
		if err != nil {
			return nil, err
		}
		out = append(out, name)
	}
	if first := args[0]; len(args) > 1 && served != nil && !(n.said && n.one) && !strings.ContainsAny(first, "/@") && served(first) {
		return nil, n.kind.isKind(first)
	}
	return append(out, rest...), nil
}

// name returns NAME from an argument NAME or KIND/NAME.
func (k kindWords) name(arg string) (string, error) {
	word, name, slash := strings.Cut(arg, "/")
	other, known := knownKind(word)
	switch {
	case !slash && (known || k.has(word)):
		return "", k.isKind(word)
	case !slash:
		return arg, nil
	case word == "" || name == "" || strings.Contains(name, "/"):
		return "", usageError{fmt.Errorf("%q: want NAME or %s/NAME", arg, k.word())}
	case k.has(word):
		return name, nil
	case known:
		return "", usageError{fmt.Errorf("%s: this verb is for %s, and that is one of %s: see 'kubectl get %s %s'", arg, k.resource, other.resource, other.resource, name)}
	}
	return "", usageError{fmt.Errorf("%s: unknown kind %q: this verb is for %s, write NAME or %s/NAME", arg, word, k.resource, k.word())}
}

// word returns the first short word for the kind, or its singular.
func (k kindWords) word() string {
	if len(k.short) > 0 {
		return k.short[0]
	}
	return k.singular
}

// isKind returns the error for a word that names a kind where the name of an object is expected.
func (k kindWords) isKind(word string) error {
	if k.has(word) {
		return usageError{fmt.Errorf("%q is a kind: name the object after it; one that is called so is %s/%s", word, k.word(), word)}
	}
	return usageError{fmt.Errorf("%q is another kind, and this verb is for %s: 'lockstep get' shows all kinds, kubectl changes them; a %s that is called so is %s/%s", word, k.resource, k.singular, k.word(), word)}
}

// servedKind reports whether the command's cluster serves a kind for word. It returns false if the
// cluster does not answer.
func servedKind(cmd *cobra.Command, word string) bool {
	flags := genericclioptions.NewConfigFlags(true)
	for name, value := range map[string]*string{"kubeconfig": flags.KubeConfig, "context": flags.Context} {
		if f := cmd.Flags().Lookup(name); f != nil {
			*value = f.Value.String()
		}
	}
	mapper, err := flags.ToRESTMapper()
	if err != nil {
		return false
	}
	gvr, gr := schema.ParseResourceArg(strings.ToLower(word))
	if gvr != nil {
		if _, err := mapper.KindFor(*gvr); err == nil {
			return true
		}
	}
	_, err = mapper.KindFor(gr.WithVersion(""))
	return err == nil
}
