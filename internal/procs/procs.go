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
)

// Start sets the number of processors, GOMAXPROCS, to one, and from then on to what is used, at most what it was before. It returns
// how to end that, which brings back what was before.
func Start() (stop func()) { return start(cpuTime, window, idle) }

func start(used func() time.Duration, window, idle time.Duration) (stop func()) {
	most := runtime.GOMAXPROCS(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p := pace{most: most, now: 1}
		runtime.GOMAXPROCS(p.now)
		timer := time.NewTimer(window)
		defer timer.Stop()
		last, at := used(), time.Now()
		for {
			select {
			case <-done:
				runtime.GOMAXPROCS(most)
				return
			case now := <-timer.C:
				u := used()
				average := (u - last).Seconds() / now.Sub(at).Seconds()
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

// next returns how many there are to be after a window in which so many were used on average.
func (p *pace) next(used float64) int {
	switch {
	case used > more*float64(p.now):
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
