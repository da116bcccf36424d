package spelling

import (
	"testing"

	"pgregory.net/rapid"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"expos", "expose", 1}, {"minAvaliable", "minAvailable", 2}, {"kitten", "sitting", 3}} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestDistanceIsAMetric(t *testing.T) {
	word := rapid.StringMatching(`[abc]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if Distance(a, b) != Distance(b, a) || (Distance(a, b) == 0) != (a == b) || Distance(a, c) > Distance(a, b)+Distance(b, c) {
			t.Fatalf("%d, %d, %d", Distance(a, b), Distance(b, c), Distance(a, c))
		}
	})
}
