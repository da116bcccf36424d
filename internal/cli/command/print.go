package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/malformed"
)

// Print prints v if output is json or yaml, and reports whether it is.
func Print(out io.Writer, output string, v any) (printed bool, err error) {
	switch output {
	case "json":
		return true, PrintJSON(out, v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err == nil {
			_, err = out.Write(data)
		}
		return true, err
	}
	return false, nil
}

// PrintList prints rows: as KIND/NAME if output is name, as json or yaml, or else as a table. header and
// the strings that line returns are columns with a tab in between; the first is the name.
func PrintList[Row any](out io.Writer, output, kind string, rows []Row, header string, line func(Row) string) error {
	if printed, err := Print(out, output, rows); printed {
		return err
	}
	if output == "name" {
		for _, r := range rows {
			name, _, _ := strings.Cut(line(r), "\t")
			if _, err := fmt.Fprintf(out, "%s/%s\n", kind, name); err != nil {
				return err
			}
		}
		return nil
	}
	w := Columns(out)
	fmt.Fprintln(w, header)
	for _, r := range rows {
		fmt.Fprintln(w, line(r))
	}
	return w.Flush()
}

// PrintJSON prints v as indented JSON.
func PrintJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// ObjectPrinter returns a function that prints objects in the form of -o: json, yaml or name. The
// function is nil if output is empty.
func ObjectPrinter(output string, out io.Writer) (func(runtime.Object) error, error) {
	var p printers.ResourcePrinter
	switch output {
	case "":
		return nil, nil
	case "name":
		p = &printers.NamePrinter{}
	case "json":
		p = &printers.JSONPrinter{}
	case "yaml":
		p = &printers.YAMLPrinter{}
	default:
		return nil, Usagef("--output=%s: want json, yaml, wide or name", output)
	}
	omit := &printers.OmitManagedFieldsPrinter{Delegate: p}
	return func(o runtime.Object) error { return omit.PrintObj(o, out) }, nil
}

// PrintObject prints one object in the form of -o: json, yaml or name.
func PrintObject(out io.Writer, output string, o runtime.Object) error {
	print, err := ObjectPrinter(output, out)
	if err != nil {
		return err
	}
	return print(o)
}

// PrintNext does the same as PrintObject for one of several objects. another is true if the object
// follows others.
func PrintNext(out io.Writer, output string, o runtime.Object, another bool) error {
	if another && output == "yaml" {
		fmt.Fprintln(out, "---")
	}
	return PrintObject(out, output, o)
}

// Columns returns a writer that aligns columns that are separated by tabs. It must be flushed.
func Columns(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// Malformed reports whether an object of a list did not decode and therefore has only its metadata.
// If so, it prints the reason.
func (s Streams) Malformed(o metav1.Object) bool {
	why := malformed.Of(o)
	if why != nil {
		fmt.Fprintf(s.Err, "Warning: %v\n", why)
	}
	return why != nil
}

// Colors reports whether w is a terminal and the user has not switched off colours.
func Colors(w io.Writer) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
