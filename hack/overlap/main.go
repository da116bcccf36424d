// Command overlap measures how much of our CUE definitions also occurs in a directory of other
// definitions.
//
//	go run ./hack/overlap [-max 15] [-n 25] OURS THEIRS
//
// For each CUE file in the directory OURS it prints the number of token sequences of length n, how
// many of them occur anywhere in the directory THEIRS, and their share in percent. It exits with 1
// if the share of a file is max or more. Files with fewer than 40 sequences are listed and never
// refused, because they have little besides what the contract fixes.
//
// Both directories are read recursively. THEIRS may hold CUE files, and YAML files with CUE texts
// in the fields template, healthPolicy, customStatus and details, also YAML that is itself a
// template and does not parse.
//
// These rules make the figures independent of the files' formatting:
//
//   - Comments are not compared, nor are fields called parameter: names, types and defaults of
//     parameters are a contract. A sequence does not span a parameter field.
//   - Line ends count as commas, and a comma before a closing bracket does not count.
//   - A multi-line text without interpolation, such as a health policy, is compared token by token
//     if it is CUE.
//
// The comparison needs other projects' definitions, which are not part of this repository: give a
// directory outside of it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// countedMin is the minimum number of sequences of a file that can be refused.
const countedMin = 40

var errOverlap = errors.New("some definitions have too much in common with the others")

func main() {
	limit := flag.Float64("max", 15, "refuse files of which this share or more occurs in THEIRS, in percent")
	n := flag.Int("n", 25, "the length of a sequence, in tokens")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: overlap [-max 15] [-n 25] OURS THEIRS")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 || *n < 1 {
		flag.Usage()
		os.Exit(2)
	}
	err := run(os.Stdout, flag.Arg(0), flag.Arg(1), *n, *limit)
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlap:", err)
	}
	switch {
	case errors.Is(err, errOverlap):
		os.Exit(1)
	case err != nil:
		os.Exit(2)
	}
}

// run prints the table. It returns errOverlap if the share of a file is limit percent or more.
func run(out io.Writer, ours, theirs string, n int, limit float64) error {
	mine, err := readFolder(ours)
	if err != nil {
		return err
	}
	others, err := readFolder(theirs)
	if err != nil {
		return err
	}
	if len(mine) == 0 || len(others) == 0 {
		return fmt.Errorf("%d definitions in %s, %d in %s: there is nothing to compare", len(mine), ours, len(others), theirs)
	}
	known := map[string]bool{}
	for _, f := range others {
		for _, s := range sequences(f.pieces, n) {
			known[s] = true
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEFINITION\tSEQUENCES\tSHARED\tPERCENT\t")
	refused := 0
	for _, f := range mine {
		all, shared := sequences(f.pieces, n), 0
		for _, s := range all {
			if known[s] {
				shared++
			}
		}
		percent, remark := 0.0, ""
		if len(all) > 0 {
			percent = 100 * float64(shared) / float64(len(all))
		}
		switch {
		case len(all) < countedMin:
			remark = "not counted"
		case percent >= limit:
			remark = "too much"
			refused++
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%.1f\t%s\n", f.name, len(all), shared, percent, remark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if refused > 0 {
		return fmt.Errorf("%w: %d of %d", errOverlap, refused, len(mine))
	}
	return nil
}
