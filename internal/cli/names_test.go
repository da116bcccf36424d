package cli

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli/command"
)

// TestVerbsThatTakeNamesReadKinds checks that every verb that takes names of objects also accepts
// kinds before them (names.Take).
func TestVerbsThatTakeNamesReadKinds(t *testing.T) {
	// The arguments of these verbs are not only names of objects, or the objects are of any kind.
	other := []string{"get", "def show", "def render", "delete", "logs", "resume", "stop", "suspend", "terminate", "wait"}
	for _, cmd := range leaves(newRoot(silent())) {
		name := strings.TrimPrefix(cmd.CommandPath(), "lockstep ")
		if strings.HasPrefix(name, "addon ") {
			continue // neither addons nor registries are a kind
		}
		_, rest, _ := strings.Cut(cmd.Use, " ")
		named := strings.Contains(rest, "WORKFLOW") || strings.HasPrefix(strings.Trim(rest, "["), "NAME") || strings.HasPrefix(strings.Trim(rest, "["), "NODE")
		err := cmd.ValidateArgs([]string{"secret/a"})
		if takes := err != nil && strings.Contains(err.Error(), "this verb is for"); takes != named && !slices.Contains(other, name) {
			t.Errorf("'lockstep %s': takes names %v, reads kinds %v", cmd.Use, named, takes)
		}
	}
}

// TestAnApplicationMayBeCalledLikeAKind checks a whole command: below 'lockstep app', a word that
// is also a kind is the name of an Application.
func TestAnApplicationMayBeCalledLikeAKind(t *testing.T) {
	for _, args := range []string{"app logs command --component command", "app exec secrets -- sh", "app delete job"} {
		root := newRoot(silent())
		root.SetArgs(append(strings.Fields(args), "--kubeconfig", filepath.Join(t.TempDir(), "none")))
		if i := strings.Index(args, " -- "); i > 0 {
			root.SetArgs(append(append(strings.Fields(args[:i]), "--kubeconfig", filepath.Join(t.TempDir(), "none"), "--"), "sh"))
		}
		var usage command.UsageError
		if err := root.Execute(); err == nil || errors.As(err, &usage) || strings.Contains(err.Error(), "kind") {
			t.Errorf("lockstep %s without a cluster: %v", args, err)
		}
	}
}
