package kubeclient_test

import (
	"testing"
	"time"

	clock "k8s.io/utils/clock/testing"

	"lockstep.dev/lockstep/internal/kubeclient"
)

// TestAWatchThatIsCutAgainAndAgainComesBackSoon checks the delays that a reflector computes from
// the backoff. The clock stands still, so that no failure is followed by the quiet period after
// which the delays are reset.
func TestAWatchThatIsCutAgainAndAgainComesBackSoon(t *testing.T) {
	const cuts = 100
	next := kubeclient.WatchBackoff().DelayWithReset(clock.NewFakeClock(time.Unix(0, 0)), 2*time.Minute)
	// delay is without jitter, which adds up to half of it.
	delay := 200 * time.Millisecond
	for i := range cuts {
		if got := next(); got < delay || got > delay*3/2 {
			t.Errorf("after %d cuts the reflector waits %v; want %v to %v", i+1, got, delay, delay*3/2)
		}
		delay = min(2*delay, 2*time.Second)
	}
}

// TestEachReflectorHasABackoffOfItsOwn checks that failures of one watch do not delay another one.
func TestEachReflectorHasABackoffOfItsOwn(t *testing.T) {
	if one, other := kubeclient.WatchBackoff(), kubeclient.WatchBackoff(); one == other {
		t.Error("two reflectors share their backoff")
	}
}
