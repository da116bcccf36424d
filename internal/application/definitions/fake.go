package definitions

import (
	"log/slog"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// NewFake returns a Library for tests that has these definitions of steps and no server.
func NewFake(steps ...*oam.WorkflowStepDefinition) *Library {
	d := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	for _, o := range steps {
		_ = d.steps.Store().Add(o) // fails only for objects without metadata
	}
	return d
}
