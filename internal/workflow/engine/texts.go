package engine

import (
	"fmt"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// textsMax is the default of Config.MaxTexts. It equals the limit for unpacking compressed nodes
// (unpack.WorkflowNodes): another manager could not load a workflow with longer texts.
const textsMax = 32 << 20

// keep adds to the number of bytes of the nodes' texts: names, inputs, outputs and messages. A loop
// can make any number of long texts from one text that fits into the spec, so texts are counted
// when they are made, not when the status is written.
func (r *Run) keep(bytes int) { r.texts += bytes }

// full reports whether the run has ended, so that nothing more may be started. It first aborts a
// workflow whose texts exceed Config.MaxTexts; name is the node to name in the message.
func (r *Run) full(name string) bool {
	if r.texts > r.config.MaxTexts && !r.ended {
		r.abort(fmt.Sprintf("the workflow's nodes have more than %d bytes of names, inputs, outputs and messages, at %s; "+
			"split it into several workflows", r.config.MaxTexts, shorten(name)))
	}
	return r.ended
}

// give sets the node's outputs and counts their texts.
func (n *node) give(o *wf.Outputs) {
	n.run.keep(outputsBytes(o) - outputsBytes(n.Outputs))
	n.Outputs = o
}

func outputsBytes(o *wf.Outputs) int {
	if o == nil {
		return 0
	}
	size := parametersBytes(o.Parameters) + artifactsBytes(o.Artifacts)
	if o.Result != nil {
		size += len(*o.Result)
	}
	return size
}

func parametersBytes(list []wf.Parameter) (size int) {
	for i := range list {
		p := &list[i]
		size += len(p.Name)
		for _, text := range []*wf.AnyString{p.Value, p.Default} {
			if text != nil {
				size += len(*text)
			}
		}
	}
	return size
}

func artifactsBytes(list []wf.Artifact) (size int) {
	for i := range list {
		size += len(list[i].Name)
		if raw := list[i].Raw; raw != nil {
			size += len(raw.Data)
		}
	}
	return size
}
