package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// WaitForRuns waits for all runs among objects in parallel, prints each change of phase, and returns
// how many runs failed.
func WaitForRuns(ctx context.Context, progress io.Writer, objects []*submit.Object) (failed int, err error) {
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		waiting []string
	)
	for _, o := range objects {
		if !o.IsRun() {
			continue
		}
		wg.Go(func() {
			out, e := submit.Wait(ctx, o, func(now submit.Outcome) {
				if now.Phase == "" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				said := now.Phase
				if now.Message != "" {
					said += ": " + now.Message
				}
				fmt.Fprintf(progress, "%s: %s\n", o.Ref(), display.OneLine(said))
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e != nil && ctx.Err() != nil:
				waiting = append(waiting, o.Ref())
				err = ctx.Err()
			case e != nil:
				failed++
				fmt.Fprintf(progress, "lockstep: %v\n", e)
			case out.Failed:
				failed++
			}
		})
	}
	wg.Wait()
	if err != nil {
		slices.Sort(waiting)
		if more := len(waiting) - namedMax; more > 0 {
			waiting = append(waiting[:namedMax], fmt.Sprintf("%d others", more))
		}
		err = fmt.Errorf("not waited to the end for %s, which 'lockstep get' shows: %w", strings.Join(waiting, ", "),
			err)
	}
	return failed, err
}

// namedMax is the maximum number of runs that a message names.
const namedMax = 3
