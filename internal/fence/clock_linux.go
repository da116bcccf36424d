package fence

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine started, counted from 1970. Go's own monotonic clock stops
// while the machine is suspended, and the time of day may be set back.
func Now() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		// Linux has this clock since 2.6.39.
		panic("fence: the clock CLOCK_BOOTTIME cannot be read: " + err.Error())
	}
	return time.Unix(t.Unix())
}
