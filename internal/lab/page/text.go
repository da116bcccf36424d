package page

import (
	"encoding/csv"
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

// CSV writes the tables one after the other, each with a line of titles and an empty line between
// two. The first column is the title of the table.
func (p *Page) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	for i, t := range p.tables() {
		if i > 0 {
			c.Flush()
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		head := []string{"table"}
		for _, column := range t.Columns {
			head = append(head, column.Title)
		}
		if err := c.Write(head); err != nil {
			return err
		}
		for _, row := range t.Rows {
			line := []string{t.Title}
			for _, cell := range row {
				line = append(line, cell.Text)
			}
			if err := c.Write(line); err != nil {
				return err
			}
		}
	}
	c.Flush()
	return c.Error()
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
