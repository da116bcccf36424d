package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/util/exec"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/install"
)

func TestExitCodes(t *testing.T) {
	for what, c := range map[string]struct {
		err  error
		want int
	}{
		"a failure":                       {errors.New("x"), 1},
		"wrong usage":                     {command.Usagef("x"), 2},
		"a timeout":                       {fmt.Errorf("x: %w", context.DeadlineExceeded), 3},
		"foreign objects":                 {&install.ForeignError{}, 4},
		"an interruption":                 {fmt.Errorf("x: %w", context.Canceled), 130},
		"a command in a pod that failed":  {exec.CodeExitError{Err: errors.New("x"), Code: 42}, 42},
		"the same within another failure": {fmt.Errorf("x: %w", exec.CodeExitError{Err: errors.New("x"), Code: 42}), 42},
	} {
		if got, _ := exitCode(c.err, "lockstep x"); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}
