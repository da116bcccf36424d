// Package lint is the verb lint, which checks manifests without a cluster.
package lint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lint"
)

// New returns the verb lint for one kind, or for all kinds if kind is empty.
func New(s command.Streams, kind string) *cobra.Command {
	var (
		kinds   []string
		output  string
		noColor bool
	)
	cmd := &cobra.Command{
		Use:   "lint FILE|FOLDER|-...",
		Short: "Check manifests without a cluster",
		Long: `Check workflows, jobs, queues, PodGroups, applications, definitions and their relatives without a cluster: unknown fields at
any depth, wrong types, what the API server refuses by the CRDs and policies of Lockstep, templates and variables of workflows that do
not exist, bad expressions, cycles, applications and definitions that cannot be rendered, fields without effect. Folders are looked
through for .yaml, .yml and .json files. What is given together is checked together: a workflow may refer to templates of another
file, an application to definitions. Charts are not fetched.

Findings go to stdout, one a line: FILE:LINE: what is wrong. -o json and -o sarif are for programs: a list, and the format
that editors and code hosts read.

Exit codes: 0 nothing is wrong, or there are only warnings; 1 something is wrong, or there was nothing to check; 2 wrong usage.`,
		Example: `  lockstep lint manifests/
  cat wf.yaml | lockstep lint - -o simple
  lockstep lint manifests/ -o sarif > findings.sarif`,
		Args: command.SomeArgs("FILE, FOLDER or -"),
	}
	if kind == "" {
		cmd.Flags().StringSliceVar(&kinds, "kinds", nil, "only these kinds: "+strings.Join(lint.Kinds(), ", "))
		command.CompleteWords(cmd, "kinds", lint.Kinds()...)
	}
	cmd.Flags().BoolVar(&noColor, "no-color", false, "no colours, as $NO_COLOR does")
	command.OutputFlag(cmd, &output, "pretty", "simple", "json", "sarif")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if kind != "" {
			kinds = []string{kind}
		}
		for i, k := range kinds {
			j := slices.IndexFunc(lint.Kinds(),
				func(known string) bool { return strings.EqualFold(k, known) || strings.EqualFold(k, known+"s") })
			if j < 0 {
				return command.Usagef("--kinds=%s: there are %s", k, strings.Join(lint.Kinds(), ", "))
			}
			kinds[i] = lint.Kinds()[j]
		}
		files, err := lintFiles(s.In, args)
		if err != nil {
			return err
		}
		options, err := checks()
		if err != nil {
			return err
		}
		options.Kinds = kinds
		checked, findings := lint.Lint(files, *options)
		wrong := 0
		for _, f := range findings {
			if !f.Warning {
				wrong++
			}
		}
		if err := printFindings(s.Out, findings, output, !noColor && command.Colors(s.Out)); err != nil {
			return err
		}
		switch {
		case wrong == 1:
			return errors.New("1 problem")
		case wrong > 0:
			return fmt.Errorf("%d problems", wrong)
		case checked == 0:
			return errors.New("there was nothing to check: no object of a kind that lint checks in what was given")
		}
		if output != "simple" && output != "json" && output != "sarif" {
			fmt.Fprintf(s.Err, "%d manifests checked, nothing wrong.\n", checked)
		}
		return nil
	}
	return cmd
}

// printFindings prints findings in the form output.
func printFindings(out io.Writer, findings []lint.Finding, output string, color bool) error {
	report := map[string]func([]lint.Finding) ([]byte, error){"json": lint.JSON, "sarif": lint.SARIF}[output]
	if report != nil {
		data, err := report(findings)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", data)
		return err
	}
	for _, f := range findings {
		text := f.String()
		if f.Warning {
			text = strings.Replace(text, f.Message, "warning: "+f.Message, 1)
		}
		if color && f.Line > 0 {
			place := fmt.Sprintf("%s:%d:", f.File, f.Line)
			text = "\x1b[1m" + place + "\x1b[0m" + strings.TrimPrefix(text, place)
		}
		fmt.Fprintln(out, text)
	}
	return nil
}

// lintFiles reads files, the files in directories, and standard input.
func lintFiles(in io.Reader, args []string) ([]lint.File, error) {
	var out []lint.File
	read := func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out = append(out, lint.File{Name: path, Data: data})
		return nil
	}
	for _, arg := range args {
		if arg == "-" {
			data, err := io.ReadAll(in)
			if err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
			out = append(out, lint.File{Name: "stdin", Data: data})
			continue
		}
		info, err := os.Stat(arg)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			if err := read(arg); err != nil {
				return nil, err
			}
			continue
		}
		err = filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
				return err
			}
			return read(path)
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
