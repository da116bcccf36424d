package cli

import (
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// malformedPhase is printed in lists in place of the phase of an object that does not decode.
const malformedPhase = workflows.Malformed

// warnMalformed reports whether an object of a list did not decode and so has only its metadata. It
// then prints the reason.
func warnMalformed(err io.Writer, o metav1.Object) bool {
	why := malformed.Of(o)
	if why != nil {
		fmt.Fprintf(err, "Warning: %v\n", why)
	}
	return why != nil
}
