package procs

import (
	"runtime"
	"syscall"
	"time"
)

const (
	window = 100 * time.Millisecond
	// idle is the window of a program that hardly does anything: waking for shorter ones would be most of what it does.
	idle     = time.Second
	idleUsed = 0.1
	// more and less are the parts of the allowed processors' time above and below which their number changes. Half as many are
	// still used less than more says, so that it does not swing.
	more, less = 0.7, 0.25
	// calm is for how many windows in a row little must be used.
	calm = 20
	// asked is how long what may be used at most is believed: a container's limit changes rarely, and to ask stops the program
	// for a moment.
	asked = 10 * time.Second
)

// Start sets the number of processors, GOMAXPROCS, to one, and from then on to what is used, at most what Go would set. It returns
// how to end that, which leaves it to Go.
func Start() (stop func()) { return start(cpuTime, goes, window, idle, asked) }

// goes sets the number of processors to Go's own, and returns it.
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
				// Whom a lower limit holds back uses less, and gets fewer by itself: only who wants more has to ask.
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

// pace is how many processors there are now, and may be.
type pace struct {
	most, now int
	calm      int // windows in a row in which little was used
}

// short says whether most of what there is was used.
func (p *pace) short(used float64) bool { return used > more*float64(p.now) }

// next returns how many there are to be after a window in which so many were used on average.
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

// cpuTime is what the program has used since it began, in its own code and in the system's for it.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // never happens; as if nothing was used
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
