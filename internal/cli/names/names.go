package names

import (
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/cli/command"
)

// Option changes how a verb takes names.
type Option func(*nameArgs)

// First is the Option for a verb whose first argument alone names an object.
func First(n *nameArgs) { n.first = true }

// Offline is the Option for a verb that needs no cluster: no cluster is asked for its kinds.
func Offline(n *nameArgs) { n.offline = true }

// nameArgs describes how a verb takes objects by name.
type nameArgs struct {
	kind           Kind
	first, offline bool
	// below is true if the verb is below a command that names the kind, such as 'lockstep app'.
	// Then only the first of several arguments may be a kind. All others are names, even if they
	// are words for kinds, too.
	below bool
}

// Take lets users write the kind with the names of objects that cmd takes; cmd itself receives only
// names. Call Take after setting all other fields of cmd. It returns cmd.
func Take(cmd *cobra.Command, kind Kind, options ...Option) *cobra.Command {
	n := nameArgs{kind: kind}
	for _, o := range options {
		o(&n)
	}
	check, before, run := cmd.Args, cmd.PreRunE, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		bare, err := n.in(cmd).read(args, nil)
		if err == nil && check != nil {
			err = check(cmd, bare)
		}
		return err
	}
	if before != nil {
		cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
			bare, err := n.in(cmd).read(args, nil)
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
		bare, err := n.in(cmd).read(args, served)
		if err != nil {
			return err
		}
		return run(cmd, bare)
	}
	return cmd
}

// in returns n with below set according to the parents of cmd.
func (n nameArgs) in(cmd *cobra.Command) nameArgs {
	for c := cmd.Parent(); c != nil && c.HasParent(); c = c.Parent() {
		n.below = n.below || n.kind.Has(c.Name())
	}
	return n
}

// Read returns args with KIND/NAME and KIND NAME replaced by the objects' names.
func Read(kind Kind, args []string) ([]string, error) { return nameArgs{kind: kind}.read(args, nil) }

// read returns args with KIND/NAME and KIND NAME replaced by the objects' names. It refuses an
// argument that may be a kind or a name; see below for exceptions. served reports whether the
// cluster has a kind for a word that is not among knownKinds; if it is nil, no cluster is asked.
func (n nameArgs) read(args []string, served func(word string) bool) ([]string, error) {
	if len(args) == 0 {
		return args, nil
	}
	if n.kind.Has(args[0]) && len(args) > 1 {
		rest := args[1:]
		for _, name := range rest {
			if strings.Contains(name, "/") && !n.first {
				return nil, command.Usagef("%s %s: write %s NAME... or %s/NAME..., not both", args[0], name, args[0],
					args[0])
			}
		}
		return rest, nil
	}
	named, rest := args, []string(nil)
	if n.first {
		named, rest = args[:1], args[1:]
	}
	out := make([]string, 0, len(args))
	for i, arg := range named {
		if n.below && !strings.Contains(arg, "/") && (i > 0 || len(named) == 1) {
			out = append(out, arg)
			continue
		}
		name, err := n.kind.Name(arg)
		if err != nil {
			return nil, err
		}
		out = append(out, name)
	}
	if word := args[0]; len(args) > 1 && served != nil && !(n.below && n.first) && !strings.ContainsAny(word, "/@") && served(word) {
		return nil, n.kind.isKind(word)
	}
	return append(out, rest...), nil
}

// Name returns NAME from an argument NAME or KIND/NAME.
func (k Kind) Name(arg string) (string, error) {
	word, name, slash := strings.Cut(arg, "/")
	other, known := knownKind(word)
	switch {
	case !slash && (known || k.Has(word)):
		return "", k.isKind(word)
	case !slash:
		return arg, nil
	case word == "" || name == "" || strings.Contains(name, "/"):
		return "", command.Usagef("%q: want NAME or %s/NAME", arg, k.word())
	case k.Has(word):
		return name, nil
	case known:
		return "", command.Usagef("%s: this verb is for %s, and that is one of %s: see 'kubectl get %s %s'",
			arg, k.resource, other.resource, other.resource, name)
	}
	return "", command.Usagef("%s: unknown kind %q: this verb is for %s, write NAME or %s/NAME", arg, word, k.resource,
		k.word())
}

// word returns the first short word for the kind, or its singular.
func (k Kind) word() string {
	if len(k.short) > 0 {
		return k.short[0]
	}
	return k.singular
}

// isKind returns the error for a word that names a kind where the name of an object is expected.
func (k Kind) isKind(word string) error {
	if k.Has(word) {
		return command.Usagef("%q is a kind: name the object after it; one that is called so is %s/%s", word, k.word(),
			word)
	}
	return command.Usagef("%q is another kind, and this is for %s; a %s that is called so is %s/%s", word, k.resource, k.singular, k.word(), word)
}

// servedKind reports whether the command's cluster serves a kind for word. It returns false if the
// cluster does not answer.
func servedKind(cmd *cobra.Command, word string) bool {
	mapper, err := command.KubeOf(cmd).ToRESTMapper()
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
