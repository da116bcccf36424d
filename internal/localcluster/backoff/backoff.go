// Package backoff computes the pause before a program that has ended is restarted.
package backoff

import (
	"syscall"
	"time"
)

const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 10 * time.Second
	// killedMax is the maximum pause after a program was killed: by a person, a test, or the kernel
	// in need of memory. Such a program has not failed by itself, but the kernel may kill it again
	// and again.
	killedMax = time.Second
	// calm is how long a program has to run until its earlier ends are forgotten.
	calm = 30 * time.Second
)

// Restarts computes the pauses between the runs of one program. The zero value is for a program
// that has not ended yet.
type Restarts struct{ next time.Duration }

// After returns the pause after a run that lasted ran and ended with status. It is twice the
// previous pause, within the bounds.
func (p *Restarts) After(ran time.Duration, status syscall.WaitStatus) time.Duration {
	if ran > calm {
		p.next = 0
	}
	longest := pauseMax
	if status.Signaled() && (status.Signal() == syscall.SIGKILL || status.Signal() == syscall.SIGTERM) {
		longest = killedMax
	}
	pause := min(max(p.next, pauseMin), longest)
	p.next = 2 * pause
	return pause
}
