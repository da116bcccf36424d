package applications

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// policyHead is the comment of a policy that 'def policy' prints.
const policyHead = `# Warnings about applications with types without a definition or revision, and with properties that a definition does not have, of another
# type, or without one that it needs. Whoever applies the application sees them; it is accepted. Made by 'lockstep def policy'
# from the definitions that the cluster had.
`

// nativePolicies are the types of policies that need no definition.
var nativePolicies = []string{
	plan.TypeApplyOnce, plan.TypeGarbageCollect, plan.TypeSharedResource, plan.TypeTakeOver, plan.TypeReadOnly, plan.TypeResourceUpdate,
	plan.TypeTopology, plan.TypeOverride, plan.TypeReplication, plan.TypeDebug, plan.TypeEnvBinding,
}

func newDefPolicy(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Print an admission policy that warns of unknown types and properties, from the cluster's definitions",
		Long: `Print the policy application-parameters.lockstep.dev, made from all definitions of the cluster. With it, kubectl apply warns of types
without a definition or revision, too, and of properties of definitions of one's own. 'lockstep install' installs it with the built-in
definitions alone. Run this again after definitions, and after an installation.`,
		Example: "  lockstep def policy > policy.yaml",
		Args:    command.NoArgs,
	}
	v := newVerb(s, cmd)
	command.Must(cmd.Flags().MarkHidden("namespace")) // the policy is for all namespaces
	return v.Run(func(ctx context.Context, client *applications.Client, _ string, _ []string) error {
		defs, err := client.AllDefinitions(ctx)
		if err != nil {
			return err
		}
		set, err := builtinDefinitions()
		if err != nil {
			return err
		}
		in := &render.PolicyInput{Head: policyHead, Templates: map[string]*render.Template{}, Types: map[render.Kind][]string{render.Policy: nativePolicies}}
		elsewhere := map[string]bool{}
		sortDefinitions(set, in, elsewhere, defs.Workloads, render.OfWorkload)
		sortDefinitions(set, in, elsewhere, defs.Components, render.OfComponent)
		sortDefinitions(set, in, elsewhere, defs.Traits, render.OfTrait)
		sortDefinitions(set, in, elsewhere, defs.Policies, render.OfPolicy)
		sortDefinitions(set, in, elsewhere, defs.Steps, render.OfWorkflowStep)
		for key := range set {
			kind, name, _ := strings.Cut(key, " ")
			in.Types[render.Kind(kind)] = append(in.Types[render.Kind(kind)], name)
			if elsewhere[key] {
				continue // in a namespace that has one of its own, it has other parameters
			}
			t, err := set.compile(render.Kind(kind), name)
			var wrong *render.Error
			if errors.As(err, &wrong) {
				fmt.Fprintf(s.Err, "warning: without the properties of %v\n", err)
				continue
			}
			if err != nil {
				return err
			}
			in.Templates[key] = t
		}
		in.Versions = versionsOf(in.Types, defs.Revisions)
		text, err := render.ParametersPolicy(in)
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(s.Out, text)
		return err
	})
}

// sortDefinitions adds the definitions for everyone to set, and the names of the others to the
// types of the policy and to elsewhere.
func sortDefinitions[T any](set definitionSet, in *render.PolicyInput, elsewhere map[string]bool, list []T, definition func(*T) *render.Definition) {
	for i := range list {
		def := definition(&list[i])
		kind, name, _ := strings.Cut(def.String(), " ")
		if ns := any(&list[i]).(metav1.Object).GetNamespace(); ns != oam.SystemNamespace {
			elsewhere[def.String()] = true
			in.Types[render.Kind(kind)] = append(in.Types[render.Kind(kind)], ns+"/"+name)
			continue
		}
		set[def.String()] = def
	}
}

// versionsOf returns the revisions of definitions for the policy. types are the definitions. One
// without revisions is its own first revision.
func versionsOf(types map[render.Kind][]string, revisions []oam.DefinitionRevision) map[render.Kind][]string {
	out, revised := map[render.Kind][]string{}, map[string]bool{}
	for i := range revisions {
		r := &revisions[i]
		kind := render.Kind(r.Spec.DefinitionType + "Definition")
		name := r.Labels[strings.ToLower(string(kind))+".oam.dev/name"]
		revision, ok := strings.CutPrefix(r.Name, name+"-v")
		if name == "" || !ok {
			continue
		}
		if r.Namespace != oam.SystemNamespace {
			name = r.Namespace + "/" + name
		}
		out[kind] = append(out[kind], name+"@"+revision)
		revised[string(kind)+" "+name] = true
	}
	for kind, names := range types {
		for _, name := range names {
			if !revised[string(kind)+" "+name] {
				out[kind] = append(out[kind], name+"@1")
			}
		}
	}
	return out
}
