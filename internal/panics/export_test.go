package panics

import (
	"testing"
	"time"
)

// SetLockedMax sets how long Unlocked waits, until the test ends.
func SetLockedMax(t testing.TB, d time.Duration) {
	before := lockedMax
	lockedMax = d
	t.Cleanup(func() { lockedMax = before })
}
