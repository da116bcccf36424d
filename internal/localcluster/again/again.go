// Package again says how long a program that has ended is left alone before it is started again.
package again

import (
	"syscall"
	"time"
)

const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 10 * time.Second
	// killedMax is for programs that somebody has killed: a person, a test, or the kernel that needs memory. They have not
	// failed by themselves, but the last of these may do it again and again.
	killedMax = time.Second
	// calm is how long a program has to run for its earlier ends to be forgotten.
	calm = 30 * time.Second
)

// Pauses are those between the runs of one program. The zero value is that of a program that has not ended yet.
type Pauses struct{ next time.Duration }

// After is the pause after a run: twice the one before.
func (p *Pauses) After(ran time.Duration, status syscall.WaitStatus) time.Duration {
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
