package localcluster

import (
	"fmt"
	"os"
	"path/filepath"
)

// StateDir returns the directory of Lockstep's state: $XDG_STATE_HOME/lockstep. Without that
// variable, or if it is a relative path, which the XDG specification forbids, it is
// ~/.local/state/lockstep.
func StateDir() (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("neither XDG_STATE_HOME nor a home directory: %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "lockstep"), nil
}
