package procs

import (
	"runtime"
	"syscall"
	"time"
)

const (
	window = 100 * time.Millisecond
	// idle is the window of a program that does almost nothing: waking up for shorter windows would
	// be most of its work.
	idle     = time.Second
	idleUsed = 0.1
	// more and less are the shares of the allowed CPU time above and below which the number of
	// processors changes. After halving, the used share stays below more, so that the number does
	// not oscillate.
	more, less = 0.7, 0.25
	// calm is the number of windows in a row with little use before the number is halved.
	calm = 20
	// asked is how long a known maximum is reused: a container's limit changes rarely, and reading
	// it pauses the program.
	asked = 10 * time.Second
)

// Start sets GOMAXPROCS to one, and from then on to the number of processors that the program uses,
// at most Go's default. stop ends this and restores Go's default.
func Start() (stop func()) { return start(cpuTime, goes, window, idle, asked) }

// goes sets GOMAXPROCS to Go's default, and returns it.
func goes() int {
	runtime.SetDefaultGOMAXPROCS()
	return runtime.GOMAXPROCS(0)
}

func start(used func() time.Duration, most func() int, window, idle, asked time.Duration) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	p, known := pace{most: most(), now: 1}, time.Now()
	go func() {
		defer close(ended)
		runtime.GOMAXPROCS(p.now)
		timer := time.NewTimer(window)
		defer timer.Stop()
		last, at := used(), time.Now()
		for {
			select {
			case <-done:
				most()
				return
			case now := <-timer.C:
				u := used()
				average := (u - last).Seconds() / now.Sub(at).Seconds()
				// A program under a lower limit uses less, and gets fewer processors anyway: the
				// limit is read only for a program that needs more.
				if p.short(average) && now.Sub(known) > asked {
					p.most, known = most(), now
					runtime.GOMAXPROCS(p.now)
				}
				if before := p.now; p.next(average) != before {
					runtime.GOMAXPROCS(p.now)
				}
				if last, at = u, now; p.now == 1 && average < idleUsed {
					timer.Reset(idle)
				} else {
					timer.Reset(window)
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// pace is the current and the maximum number of processors.
type pace struct {
	most, now int
	calm      int // windows in a row with little use
}

// short reports whether the program used most of its current processors' time.
func (p *pace) short(used float64) bool { return used > more*float64(p.now) }

// next returns the number of processors after a window with the average number used.
func (p *pace) next(used float64) int {
	switch {
	case p.short(used):
		p.now, p.calm = min(2*p.now, p.most), 0
	case used > less*float64(p.now) || p.now == 1:
		p.calm = 0
	default:
		if p.calm++; p.calm == calm {
			p.now, p.calm = (p.now+1)/2, 0
		}
	}
	return p.now
}

// cpuTime returns the CPU time of the program since its start, in its own code and in the kernel.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // never happens
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
