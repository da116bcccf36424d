package fence

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the machine started, counted from 1970. Go's own clock stands still while the machine is suspended, and
// the time of day may be set back.
func Now() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("fence: the clock CLOCK_BOOTTIME cannot be read: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Unix(t.Unix())
}
