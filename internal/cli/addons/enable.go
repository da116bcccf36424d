package addons

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/addon"
	"lockstep.dev/lockstep/internal/application/render"
	cliapps "lockstep.dev/lockstep/internal/cli/applications"
	"lockstep.dev/lockstep/internal/cli/command"
)

// options are the flags of enable and upgrade.
type options struct {
	registry, version           string
	clusters                    []string
	yes, force, override, newer bool
	wait                        bool
	timeout                     time.Duration
}

func (o *options) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.registry, "registry", "", "the registry, by its name, its address or a folder; default: the first one that has the addon")
	f.StringVar(&o.version, "version", "", "a version, or a range of versions; default: the newest")
	f.StringSliceVar(&o.clusters, "clusters", nil, "the clusters of an addon that goes to managed clusters; default: all")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.force, "force", false, "also if rights are missing")
	f.BoolVar(&o.override, "override-definitions", false, "replace definitions that do not belong to the addon")
	f.BoolVar(&o.newer, "skip-version-check", false, "also if the addon requires other versions of Kubernetes or KubeVela")
	f.BoolVarP(&o.wait, "wait", "w", false, "wait until it runs")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait")
}

// codes are the exit codes of enable and upgrade.
const codes = "Exit codes: 0 it is enabled, and with --wait runs; 1 it is not; 2 wrong usage; 3 it did not come to run within --timeout."

func newEnable(s command.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "enable NAME|FOLDER [PARAMETER=VALUE...]",
		Short: "Deploy an addon, with the addons that it depends on",
		Long: `Deploy an addon from a registry or a folder as an application, after those that it depends on. First, the kinds of objects that they
make are shown, with the rights that you and the manager lack for them, and you are asked. If rights are missing nothing is done.

Parameters are written as those of Helm's --set: a.b=1, list={x,y}.

` + codes,
		Example: "  lockstep addon enable notes size=2 --registry https://addons.example.com\n  lockstep addon enable ./notes --yes",
		Args:    command.SomeArgs("NAME or FOLDER"),
	}
	v := newVerb(s, cmd)
	o.add(cmd)
	v.DryRun.AddPrinted(cmd, "applied")
	cmd.ValidArgsFunction = command.First(v.available(o))
	return v.Run(func(ctx context.Context, client *clients, _ string, args []string) error {
		parameters, err := parametersOf(args[1:], o.clusters)
		if err != nil {
			return err
		}
		return v.enable(ctx, client, o, args[0], parameters)
	})
}

func newUpgrade(s command.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "upgrade NAME|FOLDER [PARAMETER=VALUE...]",
		Short: "Deploy another version of an addon that is enabled",
		Long: `Deploy another version of an addon, with the parameters that it was enabled with, as far as none are given. Definitions that the other
version does not have are deleted.

` + codes,
		Example: "  lockstep addon upgrade notes --version 1.3.0\n  lockstep addon upgrade ./notes size=3 --yes",
		Args:    command.SomeArgs("NAME or FOLDER"),
	}
	v := newVerb(s, cmd)
	o.add(cmd)
	v.DryRun.AddPrinted(cmd, "applied")
	cmd.ValidArgsFunction = v.names()
	return v.Run(func(ctx context.Context, client *clients, _ string, args []string) error {
		given, err := parametersOf(args[1:], o.clusters)
		if err != nil {
			return err
		}
		name := args[0]
		if isFolder(name) {
			a, err := folder(name)
			if err != nil {
				return err
			}
			name = a.Name
		}
		e, err := client.one(ctx, name)
		if err != nil {
			return err
		}
		parameters, err := client.Parameters(ctx, name)
		if err != nil {
			return err
		}
		if o.registry == "" && !isFolder(args[0]) {
			o.registry = e.Registry
		}
		return v.enable(ctx, client, o, args[0], merged(parameters, given))
	})
}

// available completes the names of the addons in the registries, and of folders.
func (v verb) available(o *options) cobra.CompletionFunc {
	complete := v.Complete(func(ctx context.Context, client *clients, _ string) (names []string, err error) {
		registries, err := client.chosen(ctx, o.registry)
		for i := range registries {
			list, err := client.fetcher.List(ctx, &registries[i])
			if err != nil {
				continue // it may have a password, or not list what it has
			}
			for _, a := range list {
				names = append(names, a.Name+"\t"+a.Description)
			}
		}
		return names, err
	})
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		names, _ := complete(cmd, args, text)
		return names, cobra.ShellCompDirectiveDefault
	}
}

// parametersOf reads parameters in the form of Helm's --set.
func parametersOf(texts, clusters []string) (map[string]any, error) {
	out := map[string]any{}
	for _, text := range texts {
		if !strings.Contains(text, "=") {
			return nil, command.Usagef("parameter %q: want PARAMETER=VALUE", text)
		}
		if err := strvals.ParseInto(text, out); err != nil {
			return nil, command.Usagef("parameter %q: %w", text, err)
		}
	}
	for _, c := range clusters {
		list, _ := out[addon.ClustersParameter].([]any)
		out[addon.ClustersParameter] = append(list, c)
	}
	return out, nil
}

// merged returns old with the values of more, which precede.
func merged(old, more map[string]any) map[string]any {
	out := maps.Clone(old)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range more {
		inner, ok := v.(map[string]any)
		if was, both := out[k].(map[string]any); ok && both {
			v = merged(was, inner)
		}
		out[k] = v
	}
	return out
}

// isFolder reports whether an argument is a folder, and not the name of an addon.
func isFolder(arg string) bool {
	info, err := os.Stat(arg)
	return err == nil && info.IsDir() && (strings.ContainsRune(arg, os.PathSeparator) || arg == "." || arg == "..")
}

// enable applies an addon and those that it depends on.
func (v verb) enable(ctx context.Context, client *clients, o *options, what string, parameters map[string]any) error {
	var all []*wanted
	var generations map[string]int64
	err := evaluate(ctx, func(run render.Run) (err error) {
		all, err = client.collect(ctx, o, run, what, parameters)
		if err == nil {
			err = v.check(ctx, client, o, run, all)
		}
		return err
	})
	if err != nil {
		return err
	}
	if v.DryRun.Client() {
		return v.print(all)
	}
	if !o.yes && !v.DryRun.On() {
		if err := consent(v.In, v.Err, all); err != nil {
			return err
		}
	}
	generations = map[string]int64{}
	for _, w := range all {
		generation, err := client.Apply(ctx, w.rendered, w.addon.Name, w.parameters)
		if err != nil {
			return fmt.Errorf("addon %s: %w", w.addon.Name, err)
		}
		generations[w.addon.Name] = generation
		fmt.Fprintf(v.Out, "addon/%s %s: version %s, application %s/%s\n", w.addon.Name, v.DryRun.Said("enabled"), w.addon.Version,
			oam.SystemNamespace, w.rendered.Application.GetName())
		if w.rendered.Notes != "" {
			fmt.Fprintln(v.Out, strings.TrimSpace(w.rendered.Notes))
		}
	}
	if !o.wait || v.DryRun.On() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for _, w := range all {
		err := cliapps.Await(ctx, v.Err, client.apps, oam.SystemNamespace, w.rendered.Application.GetName(), generations[w.addon.Name])
		if err != nil {
			return err
		}
	}
	return nil
}

// print prints the objects that would be applied.
func (v verb) print(all []*wanted) error {
	printer, err := command.ObjectPrinter("yaml", v.Out)
	if err != nil {
		return err
	}
	for _, w := range all {
		for _, u := range slices.Concat([]*unstructured.Unstructured{w.rendered.Application}, w.rendered.Beside) {
			if err := printer(u); err != nil {
				return err
			}
		}
	}
	return nil
}

// errNoConsent is the error for addons that nobody has agreed to.
var errNoConsent = errors.New("nothing was done: it takes a y, or --yes")

// consent asks whether addons are to be enabled.
func consent(in io.Reader, out io.Writer, all []*wanted) error {
	var names []string
	for _, w := range all {
		names = append(names, w.addon.String())
	}
	fmt.Fprintf(out, "Enable %s? [y/N] ", strings.Join(names, ", "))
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errNoConsent
}
