package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep.dev/lockstep/internal/cli/command"
)

// leaves returns the visible commands that have no commands below them.
func leaves(cmd *cobra.Command) []*cobra.Command {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return nil
	}
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var out []*cobra.Command
	for _, c := range cmd.Commands() {
		out = append(out, leaves(c)...)
	}
	return out
}

func silent() command.Streams {
	return command.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}
}

func TestHelpShowsExamplesThatAreRight(t *testing.T) {
	for _, cmd := range leaves(newRoot(silent())) {
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("'%s --help' lacks a description or an example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			_, call, found := strings.Cut(line, "lockstep ")
			if !found {
				t.Errorf("%s: an example does not call lockstep: %s", cmd.CommandPath(), line)
				continue
			}
			call, _, _ = strings.Cut(call, " > ")
			// Each call has a tree of its own because flags keep their values.
			called, rest, err := newRoot(silent()).Find(strings.Fields(call))
			if err == nil {
				err = called.ParseFlags(rest)
			}
			if err == nil {
				err = called.ValidateArgs(called.Flags().Args())
			}
			if err != nil || called.CommandPath() != cmd.CommandPath() {
				t.Errorf("%s: the example calls %s: %v: %s", cmd.CommandPath(), called.CommandPath(), err, line)
			}
		}
	}
}

// The groups of commands. Each command is in one group and has the flags that users expect of that
// group.
const (
	// Has -o json and name, and -A if the objects are in namespaces.
	lists   = "lists objects"
	shows   = "shows something"             //
	changes = "creates, changes or deletes" // has --dry-run
	// Changes nothing in a cluster that a user would want to preview.
	begins = "begins, measures or serves something"
)

var commands = map[string]string{
	"agent": begins, "bench compare": begins, "bench report": begins, "bench record": shows, "bench run": begins, "bench scenarios": shows, "bench sweep": begins, "bench tune": begins, "manager": begins, "up": begins,
	"app exec": begins, "app port-forward": begins,

	"addon disable": changes, "addon enable": changes, "addon registry add": changes, "addon registry delete": changes, "addon upgrade": changes,
	"app delete": changes, "app rollback": changes, "app up": changes, "app workflow restart": changes, "app workflow resume": changes,
	"app workflow rollback": changes, "app workflow suspend": changes, "app workflow terminate": changes,
	"archive delete": changes, "archive resubmit": changes, "archive retry": changes,
	"cluster detach": changes, "cluster join": changes, "cluster labels": changes,
	"cluster-template create": changes, "cluster-template delete": changes, "cluster-template update": changes,
	"cron create": changes, "cron delete": changes, "cron resume": changes, "cron suspend": changes, "cron trigger": changes, "cron update": changes,
	"delete": changes, "down": changes, "image load": changes, "install": changes, "node set": changes,
	"queue close": changes, "queue create": changes, "queue open": changes, "restart": changes, "resubmit": changes, "resume": changes, "retry": changes, "stop": changes, "submit": changes, "suspend": changes,
	"template create": changes, "template delete": changes, "template update": changes, "terminate": changes, "uninstall": changes, "topology repack": changes,

	"addon list": lists, "addon registry list": lists,
	"app ls": lists, "app revisions": lists, "archive list": lists, "cluster list": lists, "cluster-template list": lists, "cron list": lists,
	"get": lists, "list": lists, "template list": lists,

	"addon status": shows,
	"app diff":     shows, "app dry-run": shows, "app logs": shows, "app status": shows, "archive get": shows, "cluster probe": shows,
	"cluster-template get": shows, "cluster-template lint": shows, "cron get": shows, "cron lint": shows,
	"def manifest": shows, "def render": shows, "def show": shows, "def vet": shows, "describe": shows, "events": shows, "lint": shows, "logs": shows, "migrate check": shows, "status": shows,
	"template get": shows, "template lint": shows, "topology show": shows, "topology simulate": shows, "version": shows, "wait": shows, "watch": shows,
}

// inNoNamespace lists the commands for objects that have no namespace or that of a named object.
var inNoNamespace = map[string]bool{"addon list": true, "addon registry list": true, "app revisions": true, "cluster list": true, "cluster-template list": true}

func TestCommandsHaveTheFlagsOfTheirKind(t *testing.T) {
	seen := map[string]bool{}
	for _, cmd := range leaves(newRoot(silent())) {
		name := strings.TrimPrefix(cmd.CommandPath(), "lockstep ")
		seen[name] = true
		want := map[string][]string{}
		switch commands[name] {
		case "":
			t.Errorf("'%s': say above what kind of command it is", name)
		case lists:
			want["output"] = []string{"json", "name"}
			if !inNoNamespace[name] {
				want["all-namespaces"] = nil
			}
		case changes:
			want["dry-run"] = []string{command.DryRunClient, command.DryRunNone}
		}
		for flag, words := range want {
			f := cmd.Flags().Lookup(flag)
			if f == nil {
				t.Errorf("'%s' %s and lacks --%s", name, commands[name], flag)
				continue
			}
			for _, word := range words {
				if err := f.Value.Set(word); err != nil {
					t.Errorf("'%s' %s and does not take --%s=%s: %v", name, commands[name], flag, word, err)
				}
			}
		}
		// The --timeout of 'bench' bounds only a part of the measurement; the report shows the outcome.
		help := strings.Join(strings.Fields(cmd.Long), " ")
		if cmd.Flags().Lookup("timeout") != nil && !strings.HasPrefix(name, "bench ") && (!strings.Contains(help, "Exit codes: 0 ") || !strings.Contains(help, "; 2 wrong usage; 3 ")) {
			t.Errorf("'%s --help' does not say what the exit codes are, of which 3 is for --timeout", name)
		}
		if strings.HasPrefix(cmd.Use, cmd.Name()+" NAME") && cmd.Flags().Lookup("kubeconfig") != nil && cmd.ValidArgsFunction == nil && !strings.Contains(cmd.Use, "UID") {
			t.Errorf("'%s': its names are not completed", name)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" && !f.Hidden {
				t.Errorf("'%s' does not say what --%s is", name, f.Name)
			}
		})
	}
	for name := range commands {
		if !seen[name] {
			t.Errorf("there is no command '%s' any more", name)
		}
	}
}

func TestHelpNamesAllExitCodes(t *testing.T) {
	help := strings.Join(strings.Fields(newRoot(silent()).Long), " ")
	for _, code := range []int{command.ExitOK, command.ExitFailed, command.ExitUsage, command.ExitTimeout, command.ExitForeign, command.ExitThreshold, command.ExitInterrupted} {
		if !strings.Contains(help, fmt.Sprintf(" %d ", code)) {
			t.Errorf("'lockstep --help' does not say what exit code %d is:\n%s", code, help)
		}
	}
}

func TestUnknownCommandsAreWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"clstr list":    "did you mean cluster",
		"nonsense":      `unknown command "nonsense"`,
		"bench rnu":     "did you mean run",
		"bench":         "lockstep bench run|compare|sweep|tune|report|record|scenarios\n",
		"app workflow":  "suspend|resume|terminate",
		"cron nonsense": `unknown command "nonsense" for "lockstep cron"`,
	} {
		var errOut strings.Builder
		if code := Run(strings.Fields(args), strings.NewReader(""), io.Discard, &errOut); code != command.ExitUsage || !strings.Contains(errOut.String(), want) {
			t.Errorf("lockstep %s: exit code %d, want %d and %q:\n%s", args, code, command.ExitUsage, want, errOut.String())
		}
	}
}

// TestWithoutAClusterVerbsSayWhatToDo runs verbs first without a kubeconfig and then with the
// kubeconfig of a cluster that no longer exists.
func TestWithoutAClusterVerbsSayWhatToDo(t *testing.T) {
	dir := t.TempDir()
	manifest, gone := filepath.Join(dir, "job.yaml"), filepath.Join(dir, "gone.kubeconfig")
	for path, text := range map[string]string{
		manifest: "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata:\n  name: j\n",
		gone: `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for kubeconfig, want := range map[string]string{filepath.Join(dir, "none"): "'lockstep up'", gone: "'lockstep status'"} {
		t.Setenv("KUBECONFIG", kubeconfig)
		for _, args := range []string{"get jobs", "get wf", "list", "submit " + manifest, "app up " + manifest, "app ls", "app delete a", "cluster list",
			"cron list", "template delete t", "logs w", "watch w", "wait w", "install", "topology show n"} {
			var errOut strings.Builder
			code := Run(strings.Fields(args), strings.NewReader(""), io.Discard, &errOut)
			if code != command.ExitFailed || !strings.Contains(errOut.String(), want) {
				t.Errorf("lockstep %s: exit code %d, and no %q in:\n%s", args, code, want, errOut.String())
			}
		}
	}
}

func TestFlagsOfWordsAreCheckedAndCompleted(t *testing.T) {
	for _, cmd := range leaves(newRoot(silent())) {
		for _, name := range []string{"output", "dry-run", "phase"} {
			flag := cmd.Flags().Lookup(name)
			if flag == nil || flag.Value.Type() == "bool" {
				continue
			}
			if _, found := cmd.GetFlagCompletionFunc(name); !found {
				t.Errorf("%s --%s is not completed", cmd.CommandPath(), name)
			}
			templates := name == "output" && slices.Contains([]string{"get", "events"}, cmd.Name()) // such as jsonpath={.a}
			if !templates && flag.Value.Set("nonsense") == nil {
				t.Errorf("%s --%s takes anything", cmd.CommandPath(), name)
			}
		}
	}
}

func TestWrongArgumentsAreErrorsOfUsage(t *testing.T) {
	for _, cmd := range leaves(newRoot(silent())) {
		for _, args := range [][]string{nil, {"a", "b", "c", "d"}} {
			var usage command.UsageError
			if err := cmd.ValidateArgs(args); err != nil && !errors.As(err, &usage) {
				t.Errorf("%s with %d arguments: %v is not told as wrong usage", cmd.CommandPath(), len(args), err)
			}
		}
	}
}
