package bench

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli/command"
)

// written returns the path of a scenario file with a text.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const everyKind = `
scenario: batch-workers
shapes: [5x4, 2x2]
writer-concurrency: [1, 4]
system: kubernetes,lockstep
repeat: 3
durable: false
timeout: 90s
fail-if:
- ratioToFloor>1.2
- latencyMs.p99>100
set: {workers: 4, qps: 50}
node-cpu: "64"
`

func TestAScenarioFileSetsFlags(t *testing.T) {
	cmd, o := measurement(command.Streams{Out: io.Discard, Err: io.Discard}, "test")
	if err := cmd.ParseFlags([]string{"--file", written(t, everyKind), "--repeat=7"}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.PreRunE(cmd, nil); err != nil {
		t.Fatal(err)
	}
	if o.scenario != "batch-workers" || !slices.Equal(o.shapes, []string{"5x4", "2x2"}) || !slices.Equal(o.WriterConcurrency, []int{1, 4}) ||
		!slices.Equal(o.Systems, []string{"kubernetes", "lockstep"}) || o.Durable || o.Timeout.Seconds() != 90 || len(o.output.failIf) != 2 ||
		!slices.Equal(o.parameters, []string{"workers=4", "qps=50"}) || o.Nodes.CPU != "64" {
		t.Errorf("%+v, %+v", o, o.Config)
	}
	if o.Repeat != 7 {
		t.Errorf("repeat is %d: the command line comes first", o.Repeat)
	}
	if !cmd.Flags().Changed("writer-concurrency") || !cmd.Flags().Changed("shapes") {
		t.Error("what the file sets does not count as set")
	}
}

func TestScenarioFilesThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "is empty",
		"- a":                          ":1: want the names of flags",
		"shapes: [1x1]\ncolour: red":   ":2: there is no flag --colour that a file can set",
		"file: other.yaml":             "there is no flag --file",
		"repeat: many":                 ":1: repeat: invalid argument",
		"repeat: [1, 2]":               ":1: repeat: takes one value",
		"writer-concurrency: [a]":      ":1: writer-concurrency: ",
		"shapes: [[1x1]]":              ":1: shapes: want a list of values",
		"repeat: 1\nrepeat: 2":         ":2: repeat is given twice",
		"set: {workers: {no: really}}": ":1: set: want a value or a list for workers",
		"\tshapes: x":                  "found character that cannot start any token",
	} {
		cmd := New(command.Streams{Out: io.Discard, Err: io.Discard}, "test")
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"run", "--file", written(t, text)})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := run("run", "--file", "/nowhere.yaml"); err == nil || !strings.Contains(err.Error(), "/nowhere.yaml") {
		t.Errorf("%v", err)
	}
}

func TestHelpShowsFlagsByScenario(t *testing.T) {
	var out bytes.Buffer
	cmd := New(command.Streams{Out: &out, Err: io.Discard}, "test")
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"run", "--help"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	all, soak := strings.Index(text, "\nFlags:\n"), strings.Index(text, "\nFlags of soak:\n")
	if all < 0 || soak < all || !strings.Contains(text[soak:], "--soak-rate") || strings.Contains(text[all:soak], "--soak-rate") ||
		!strings.Contains(text[all:soak], "--scenario") {
		t.Errorf("help:\n%s", text)
	}
	list, err := run("scenarios")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scenarios {
		if about[name] == "" || !strings.Contains(list, name) {
			t.Errorf("scenario %s has no description, or is not in\n%s", name, list)
		}
	}
}
