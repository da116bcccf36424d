package local

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"lockstep.dev/lockstep/internal/localcluster"
)

// progress prints a cluster's start: on a terminal one line that changes, elsewhere a line for each
// event.
type progress struct {
	out     io.Writer
	began   time.Time
	waiting []localcluster.Component
	events  chan localcluster.Event
	done    chan struct{}
}

func newProgress(out io.Writer, began time.Time) *progress {
	p := &progress{out: out, began: began, events: make(chan localcluster.Event, 64), done: make(chan struct{})}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		go p.animate()
	} else {
		go p.list()
	}
	return p
}

func (p *progress) event(e localcluster.Event) { p.events <- e }

// end closes the progress and returns when all events are printed.
func (p *progress) end() {
	close(p.events)
	<-p.done
}

func (p *progress) list() {
	defer close(p.done)
	for e := range p.events {
		p.print(e)
	}
}

func (p *progress) print(e localcluster.Event) {
	at := fmt.Sprintf("%5.1f s  ", time.Since(p.began).Seconds())
	switch {
	case e.Component == "":
	case e.Kind == localcluster.EventProgress:
		fmt.Fprintf(p.out, "%s%s: %s\n", at, e.Component, e.Message)
	case e.Kind == localcluster.EventReady:
		fmt.Fprintf(p.out, "%s%s is ready\n", at, e.Component)
	case e.Kind == localcluster.EventDied:
		fmt.Fprintf(p.out, "%s%s died: %s; its log ends:\n%s\n", at, e.Component, e.Message, indent(e.LogTail))
	}
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

func (p *progress) animate() {
	defer close(p.done)
	const clear, frames = "\r\033[K", `|/-\`
	dim, plain := "\033[2m", "\033[0m"
	if os.Getenv("NO_COLOR") != "" {
		dim, plain = "", ""
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for frame := 0; ; frame++ {
		select {
		case e, ok := <-p.events:
			fmt.Fprint(p.out, clear)
			if !ok {
				return
			}
			p.print(e)
			p.note(e)
		case <-ticker.C:
		}
		fmt.Fprintf(p.out, "%s%5.1f s  %c %swaiting for %s%s", clear, time.Since(p.began).Seconds(),
			frames[frame%len(frames)], dim, p.names(), plain)
	}
}

// note updates the list of components that are still starting.
func (p *progress) note(e localcluster.Event) {
	if e.Component == "" {
		return
	}
	var rest []localcluster.Component
	for _, c := range p.waiting {
		if c != e.Component {
			rest = append(rest, c)
		}
	}
	if e.Kind == localcluster.EventStarting {
		rest = append(rest, e.Component)
	}
	p.waiting = rest
}

func (p *progress) names() string {
	if len(p.waiting) == 0 {
		return "the rest"
	}
	var names []string
	for _, c := range p.waiting {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}
