package applications

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newDiff(s command.Streams) *cobra.Command {
	var files []string
	var revisions string
	var lines int
	cmd := &cobra.Command{
		Use:     "diff [NAME] [-f FILE]",
		Aliases: []string{"live-diff"},
		Short:   "Show what would change in an application, or has changed between its revisions",
		Long: `With -f, compare the application as it is in the cluster with the manifest: what is declared, and the objects that it is made
of. With --revision A,B compare two revisions; with --revision A that one with what is declared now; with neither, the last
two revisions.`,
		Example: "  lockstep app diff -f shop.yaml\n  lockstep app diff shop --revision shop-v1,shop-v3",
		Args:    command.AtMostOneArg("NAME"),
	}
	v := newVerb(s, cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "manifests, or - for standard input")
	cmd.Flags().StringVarP(&revisions, "revision", "r", "",
		"one or two revisions, as lockstep app revisions lists them")
	cmd.Flags().IntVar(&lines, "context-lines", 3, "lines around each change")
	v.Check(func(args []string) error {
		if (len(files) > 0) == (len(args) > 0) {
			return command.Usagef("say which application: by its name, or by a manifest with -f")
		}
		return nil
	})
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		if len(args) > 0 {
			return v.diffRevisions(ctx, client, namespace, args[0], revisions, lines)
		}
		return v.diffFiles(ctx, client, namespace, files, lines)
	})
}

func (v verb) diffRevisions(ctx context.Context, client *applications.Client, namespace, name, wanted string,
	lines int) error {
	app, err := client.Get(ctx, namespace, name)
	if err != nil {
		return err
	}
	all, err := revisionsOf(ctx, client, namespace, name)
	if err != nil {
		return err
	}
	var from, to *oam.ApplicationSpec
	fromName, toName := "", "declared now"
	if a, b, two := strings.Cut(wanted, ","); wanted == "" {
		earlier, err := chosenRevision(all, "")
		if err != nil {
			return err
		}
		from, fromName = earlier.Spec, earlier.Name
		to, toName = all[len(all)-1].Spec, all[len(all)-1].Name
	} else {
		earlier, err := chosenRevision(all, a)
		if err != nil {
			return err
		}
		from, fromName, to = earlier.Spec, earlier.Name, &app.Spec
		if two {
			later, err := chosenRevision(all, b)
			if err != nil {
				return err
			}
			to, toName = later.Spec, later.Name
		}
	}
	return printDiff(v.Out, name, fromName, toName, from, to, lines)
}

func (v verb) diffFiles(ctx context.Context, client *applications.Client, namespace string, files []string,
	lines int) error {
	objects, err := readObjects(v.Streams, files)
	if err != nil {
		return err
	}
	charts := newFetchedCharts(ctx, v.Err, inProcess())
	for _, u := range objects {
		if u.GetKind() != "Application" {
			continue
		}
		if u.GetNamespace() == "" {
			u.SetNamespace(namespace)
		}
		before, err := definitionsIn(ctx, client, u.GetNamespace())
		if err != nil {
			return err
		}
		after := maps.Clone(before)
		if err := after.add(objects); err != nil {
			return err
		}
		var was bytes.Buffer
		from := &oam.ApplicationSpec{}
		live, err := client.Get(ctx, u.GetNamespace(), u.GetName())
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return err
		default:
			from = &live.Spec
			old, err := withoutStatus(live)
			if err != nil {
				return err
			}
			if err := printRendered(&was, io.Discard, old, before, charts); err != nil {
				fmt.Fprintf(v.Err, "as it is now it cannot be rendered: %v\n", err)
				was.Reset()
			}
		}
		var app oam.Application
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &app); err != nil {
			return err
		}
		if err := printDiff(v.Out, u.GetName(), "in the cluster", "in the file", from, &app.Spec, lines); err != nil {
			return err
		}
		var is bytes.Buffer
		if err := printRendered(&is, v.Err, u, after, charts); err != nil {
			return err
		}
		if err := printText(v.Out, "objects of "+u.GetName(), "in the cluster", "in the file", was.String(),
			is.String(), lines); err != nil {
			return err
		}
	}
	return nil
}

// withoutStatus returns what a user declares of an application.
func withoutStatus(app *oam.Application) (*unstructured.Unstructured, error) {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&app.Spec)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(oam.GroupVersion.WithKind("Application"))
	u.SetNamespace(app.Namespace)
	u.SetName(app.Name)
	u.SetLabels(app.Labels)
	u.SetAnnotations(app.Annotations)
	return u, nil
}

func printDiff(out io.Writer, name, fromName, toName string, from, to *oam.ApplicationSpec, lines int) error {
	was, err := yaml.Marshal(from)
	if err != nil {
		return err
	}
	is, err := yaml.Marshal(to)
	if err != nil {
		return err
	}
	return printText(out, "application "+name, fromName, toName, string(was), string(is), lines)
}

// printText prints the difference of two texts, in colour on a terminal.
func printText(out io.Writer, what, fromName, toName, from, to string, lines int) error {
	if from == to {
		_, err := fmt.Fprintf(out, "%s: no change\n", what)
		return err
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(from), B: difflib.SplitLines(to), FromFile: what + " " + fromName, ToFile: what + " " + toName, Context: lines,
	})
	if err != nil {
		return err
	}
	color := command.Colors(out)
	for line := range strings.Lines(text) {
		if color && strings.HasPrefix(line, "+") {
			line = "\x1b[32m" + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
		} else if color && strings.HasPrefix(line, "-") {
			line = "\x1b[31m" + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	return nil
}
