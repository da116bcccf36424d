// Package local holds the verbs of control planes on this machine: up, down, status, image.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// defaultCluster is the default name of a local cluster.
const defaultCluster = "default"

// twoInterrupts returns a context that ends at the first interrupt and one that ends at the second.
func twoInterrupts(errOut io.Writer) (first, second context.Context, release func()) {
	first, cancelFirst := context.WithCancel(context.Background())
	second, cancelSecond := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for _, cancel := range []func(){
			func() {
				fmt.Fprintln(errOut, "\nInterrupted: stopping what was started. Interrupt again to kill it.")
				cancelFirst()
			},
			cancelSecond,
		} {
			select {
			case <-signals:
				cancel()
			case <-done:
				return
			}
		}
	}()
	return first, second, func() {
		signal.Stop(signals)
		close(done)
		cancelFirst()
		cancelSecond()
	}
}

// NewSupervisor returns the hidden command that `up` runs in the background. Users never call it.
func NewSupervisor() *cobra.Command {
	return &cobra.Command{
		Use:    supervise.Command + " NAME",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return supervise.Run(args[0])
		},
	}
}

// clusterError returns err, or an error with advice if there is no cluster of that name.
func clusterError(name string, err error) error {
	if !errors.Is(err, supervise.ErrNoCluster) {
		return err
	}
	names, listErr := supervise.Names()
	if listErr != nil || len(names) == 0 {
		return fmt.Errorf("no local cluster %q; 'lockstep up' starts one", name)
	}
	return fmt.Errorf("no local cluster %q; there is: %s", name, strings.Join(names, ", "))
}
