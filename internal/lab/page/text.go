package page

import (
	"fmt"
	"io"
	"strings"
)

// Markdown writes the verdict, the problems and the tables, without details and charts.
func (p *Page) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n**%s**\n", escape(p.Title), escape(p.Verdict))
	if len(p.Warnings)+len(p.Problems) > 0 {
		b.WriteString("\n")
	}
	for _, text := range p.Warnings {
		fmt.Fprintf(&b, "- %s\n", escape(text))
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(&b, "- %s: %s\n", escape(problem.Run), escape(problem.Text))
	}
	for _, t := range p.tables() {
		row := func(cell func(i int) string) {
			for i := range t.Columns {
				fmt.Fprintf(&b, "| %s ", cell(i))
			}
			b.WriteString("|\n")
		}
		fmt.Fprintf(&b, "\n%s\n\n", escape(t.Title))
		row(func(i int) string { return escape(t.Columns[i].Title) })
		row(func(i int) string {
			if t.Columns[i].Right {
				return "---:"
			}
			return "---"
		})
		for _, cells := range t.Rows {
			row(func(i int) string { return escape(cells[i].Text) })
		}
	}
	b.WriteString("\n")
	for _, pairs := range [][]Pair{p.Hardware, p.Settings} {
		var parts []string
		for _, pair := range pairs {
			parts = append(parts, pair.Name+": "+pair.Value)
		}
		fmt.Fprintf(&b, "%s\n", escape(strings.Join(parts, "; ")))
	}
	fmt.Fprintf(&b, "\nlockstep %s, %s\n", escape(p.Version), p.Time.Format("2006-01-02 15:04 MST"))
	_, err := io.WriteString(w, b.String())
	return err
}

// escape keeps a text from being read as markup.
func escape(s string) string {
	return strings.NewReplacer("\n", " ", `\`, `\\`, "|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`, "`", "\\`").Replace(s)
}

// tables returns the tables of all sections, each with a title.
func (p *Page) tables() (out []Table) {
	for _, s := range p.Sections {
		for _, t := range s.Tables {
			if t.Title == "" {
				t.Title = s.Title
			}
			out = append(out, t)
		}
	}
	return out
}
