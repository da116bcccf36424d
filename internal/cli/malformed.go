package cli

import (
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// malformedPhase stands in lists where an object that does not decode would have a phase.
const malformedPhase = workflows.Malformed

// warnMalformed says why an object of a list has nothing but its metadata, and reports whether it is so.
func warnMalformed(err io.Writer, o metav1.Object) bool {
	why := malformed.Of(o)
	if why != nil {
		fmt.Fprintf(err, "Warning: %v\n", why)
	}
	return why != nil
}
