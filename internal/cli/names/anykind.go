package names

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// InFull returns arguments in kubectl's form, KIND NAME... or KIND/NAME..., with the kinds that
// Lockstep serves written in full. Without that, "job" would be Kubernetes' own.
func InFull(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range args {
		kinds, name, slash := strings.Cut(arg, "/")
		if i > 0 && !slash {
			continue // a name
		}
		words := strings.Split(kinds, ",")
		for j, word := range words {
			if k, known := knownKind(word); known && k.served() {
				words[j] = k.resource
			}
		}
		if out[i] = strings.Join(words, ","); slash {
			out[i] += "/" + name
		}
	}
	return out
}

// served reports whether Lockstep serves the kind.
func (k Kind) served() bool {
	g := k.group()
	return strings.HasSuffix(g, ".volcano.sh") || strings.HasSuffix(g, ".lockstep.dev") || g == "argoproj.io" || g == "core.oam.dev"
}

// AreOfOtherKinds reports whether the arguments of a verb for workflows are of other kinds, for
// example job/hello or "job hello". selected is true if the verb's flags select the objects, so that
// the kind is all that is named. If cmd is not nil, its cluster is asked about unknown words.
func AreOfOtherKinds(cmd *cobra.Command, args []string, selected bool) bool {
	if len(args) == 0 {
		return false
	}
	word, _, slash := strings.Cut(args[0], "/")
	if Workflow.Has(word) {
		return false
	}
	_, known := knownKind(word)
	switch {
	case slash || strings.Contains(word, ","):
		return true
	case len(args) == 1 && !selected:
		return false // a workflow may be called so
	}
	return known || cmd != nil && !strings.Contains(word, "@") && servedKind(cmd, word)
}
