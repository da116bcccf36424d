package apiwriter

import (
	"testing"
	"time"
)

func TestBackoffGrowsAndObeysTheServer(t *testing.T) {
	for attempts := range 20 {
		full := backoffMax
		if attempts < 8 {
			full = min(backoffMin<<attempts, backoffMax)
		}
		for range 100 {
			if d := backoff(attempts, 0); d < full/2 || d > full {
				t.Fatalf("after %d attempts %s, want between %s and %s", attempts, d, full/2, full)
			}
			if d := backoff(attempts, 20*time.Second); d < 20*time.Second || d > 25*time.Second {
				t.Fatalf("after %d attempts and Retry-After 20: %s", attempts, d)
			}
			if d := backoff(attempts, time.Hour); d > time.Hour/2 {
				t.Fatalf("after %d attempts and Retry-After 3600: %s", attempts, d)
			}
		}
	}
}
