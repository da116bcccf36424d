// Package objects has the verbs for objects of any kind: get, describe and events, which kubectl's
// packages carry out, and the part of the verbs for workflows that is for other kinds.
//
//	lockstep VERB hello      a workflow
//	lockstep VERB job/hello  another kind: ForAllKinds adds it to the verbs of package workflows
//
// Words for kinds mean Lockstep's kinds first: "jobs" are those of batch.volcano.sh.
package objects

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd/util"

	"lockstep.dev/lockstep/internal/cli/command"
)

// streams returns s in kubectl's form.
func streams(s command.Streams) genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: s.In, Out: s.Out, ErrOut: s.Err}
}

// factory returns kubectl's source of clients. It fails if no cluster is configured: kubectl would
// try localhost.
func factory(flags *genericclioptions.ConfigFlags) (util.Factory, error) {
	_, _, err := command.Connection(flags)
	return util.NewFactory(flags), err
}

// New returns the verbs for objects of any kind.
func New(s command.Streams) []*cobra.Command {
	return []*cobra.Command{newGet(s), newDescribe(s), newEvents(s), newRestart(s), newQueue(s)}
}
