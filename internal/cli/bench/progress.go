package bench

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"lockstep.dev/lockstep/internal/lab/jobs"
)

// progress prints the progress of an experiment: on a terminal one line that is rewritten,
// elsewhere one line for each step.
type progress struct {
	w        io.Writer
	terminal bool
	width    int

	lock  sync.Mutex
	last  time.Time
	run   string // the number of the run, as a prefix
	stage string
	began time.Time
	drawn bool
}

const redrawEvery = 150 * time.Millisecond

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, width: 100}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal = true
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	return p
}

// line prints a line that stays.
func (p *progress) line(text string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.erase()
	fmt.Fprintln(p.w, p.run+text)
	p.stage = ""
}

func (p *progress) step(e jobs.Step) {
	p.lock.Lock()
	defer p.lock.Unlock()
	now := time.Now()
	p.run = fmt.Sprintf("[%d/%d] ", e.Run, e.Runs)
	line := p.run + e.Case + ": " + e.Stage
	step := line != p.stage
	if step {
		p.stage, p.began = line, now
	}
	if !p.terminal {
		if step {
			fmt.Fprintln(p.w, line)
		}
		return
	}
	if !step && now.Sub(p.last) < redrawEvery {
		return
	}
	p.last = now
	if e.Total > 0 {
		line += fmt.Sprintf(" %d/%d", e.Done, e.Total)
	}
	line += fmt.Sprintf(" %.0fs", now.Sub(p.began).Seconds())
	if len(line) >= p.width {
		line = line[:p.width-1]
	}
	fmt.Fprintf(p.w, "\r\033[K%s", line)
	p.drawn = true
}

func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\033[K")
		p.drawn = false
	}
}

func (p *progress) end() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.erase()
}
