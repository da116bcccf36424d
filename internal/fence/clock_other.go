//go:build !linux

package fence

import "time"

var started = time.Now()

// Now returns the time since the process started, counted from 1970. It may stop while the machine
// is suspended.
func Now() time.Time { return time.Unix(0, int64(time.Since(started))+1) }
