package controller

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/author"
)

// givenWrite is the name of the write of what policies give an Application among its writes.
const givenWrite = "given"

// giver writes the labels and annotations that policies give Applications.
type giver struct {
	writer  apiwriter.Writer
	authors *author.Finder
	now     func() time.Time
}

// give writes what the Application lacks. It does so as the Application's author: whoever changes
// labels is recorded as the author by the API server, and an Application acts with its author's
// rights.
func (g *giver) give(a *record, o *oam.Application) {
	last := a.Tracker.Latest()
	if last == nil || last.Given == nil {
		return
	}
	metadata := map[string]any{}
	lacks := func(field string, have, want map[string]string) {
		missing := map[string]string{}
		for key, value := range want {
			if had, ok := have[key]; !ok || had != value {
				missing[key] = value
			}
		}
		if len(missing) > 0 {
			metadata[field] = missing
		}
	}
	lacks("labels", o.Labels, last.Given.Labels)
	lacks("annotations", o.Annotations, last.Given.Annotations)
	if len(metadata) == 0 {
		a.Writes.Forget(givenWrite)
		return
	}
	if seen, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err != nil || seen < a.givenAt {
		return // the watch has yet to show them
	}
	if failure := a.Writes.Failure(givenWrite); failure != "" {
		a.Plan.Warn("labels and annotations of policies cannot be written: " + failure)
	}
	if left := a.given.Left(g.now()); left > 0 {
		a.WakeAfter(left)
		return
	}
	if !a.Writes.Start(givenWrite) {
		return
	}
	done := func(err error) {
		if a.Writes.End(givenWrite, err); err != nil {
			a.given.Failed(g.now())
			a.WakeAfter(a.given.Left(g.now()))
		}
	}
	author, err := g.authors.Author(o)
	if err != nil {
		done(err)
		return
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		done(fmt.Errorf("they cannot be encoded: %w", err))
		return
	}
	g.writer.Patch(apiwriter.Meta{Owner: a.Name, Reason: "application-given", As: author}, o, types.MergePatchType, data, func(obj apiwriter.Object, err error) {
		a.Post(func() {
			if err == nil && obj != nil {
				a.givenAt, _ = strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
			}
			done(err)
		})
	})
}
