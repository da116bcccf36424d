package workflows

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// drawing holds the flags of verbs that draw trees.
type drawing struct {
	noColor, ascii bool
	nodes          string
	statuses       []string
}

func (d *drawing) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&d.noColor, "no-color", false, "no colours, as $NO_COLOR does")
	cmd.Flags().BoolVar(&d.ascii, "no-utf8", false, "draw with plain characters")
	cmd.Flags().StringVar(&d.nodes, "node-field-selector", "",
		"only nodes that match, for example displayName=build,phase!=Succeeded")
}

// options returns the display's options for a writer.
func (d *drawing) options(w io.Writer, wide bool) (display.Options, error) {
	o := display.Options{Now: time.Now(), Wide: wide, ASCII: d.ascii, Color: !d.noColor && command.Colors(w)}
	match, err := matchNodes(d.nodes, d.statuses)
	o.Match = match
	return o, err
}
