package floor

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTheFastestConcurrencyIsTaken(t *testing.T) {
	took := map[int]time.Duration{4: 2 * time.Second, 16: time.Second, 64: 1500 * time.Millisecond}
	best, samples, err := Calibrate([]int{4, 16, 64}, func(_, n int) (int, time.Duration, error) { return 100, took[n], nil })
	if err != nil || best != 16 {
		t.Errorf("%d, %v", best, err)
	}
	if diff := cmp.Diff([]Sample{{4, 50}, {16, 100}, {64, 66.67}}, samples); diff != "" {
		t.Error(diff)
	}
	// The first sample at 64 was fast by chance.
	again := map[int][]time.Duration{4: {3 * time.Second}, 16: {2 * time.Second, 2 * time.Second}, 64: {time.Second, 4 * time.Second}}
	best, samples, err = Calibrate([]int{4, 16, 64}, func(_, n int) (int, time.Duration, error) {
		d := again[n][0]
		again[n] = again[n][1:]
		return 100, d, nil
	})
	if err != nil || best != 16 {
		t.Errorf("%d, %v", best, err)
	}
	if diff := cmp.Diff([]Sample{{4, 33.33}, {16, 50}, {64, 40}}, samples); diff != "" {
		t.Error(diff)
	}
	broken := errors.New("broken")
	if _, samples, err := Calibrate([]int{4, 16}, func(i, _ int) (int, time.Duration, error) {
		if i == 1 {
			return 0, 0, broken
		}
		return 1, time.Second, nil
	}); !errors.Is(err, broken) || len(samples) != 1 {
		t.Errorf("%v, %v", samples, err)
	}
	if _, _, err := Calibrate(nil, nil); err == nil {
		t.Error("nothing to try is no error")
	}
}
