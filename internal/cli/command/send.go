package command

import (
	"context"
	"fmt"

	"lockstep.dev/lockstep/internal/submit"
)

// Send sends or prints objects, and returns the accepted ones. It prints an error for each refused
// object.
func Send(ctx context.Context, s Streams, objects []*submit.Object, dry DryRun,
	output string) (sent []*submit.Object, err error) {
	if dry.Client() && output == "" {
		output = "yaml"
	}
	print, err := ObjectPrinter(output, s.Out)
	if err != nil {
		return nil, err
	}
	for _, one := range objects {
		if ctx.Err() != nil {
			return sent, ctx.Err()
		}
		verb := ""
		if !dry.Client() {
			if verb, err = submit.Send(one, dry.Server()); err != nil {
				fmt.Fprintf(s.Err, "lockstep: %s: %v\n", one.Ref(), err)
				continue
			}
		}
		sent = append(sent, one)
		if print == nil {
			fmt.Fprintf(s.Out, "%s %s\n", one.Ref(), dry.Said(verb))
		} else if err := print(one.Object()); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// Refused returns an error if objects were refused or failed.
func Refused(failed, of int) error {
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d objects were refused or failed", failed, of)
}
