package plan

import (
	"runtime"
	"strings"
	"testing"
)

func TestNamesMatchPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"", "", true}, {"*", "", true}, {"*", "abc", true}, {"a*", "abc", true}, {"b*", "abc", false},
		{"*c", "abc", true}, {"*b", "abc", false}, {"a*c", "abc", true}, {"a*a", "a", false}, {"a*b*c", "aXbXc", true}, {"a*b*c", "acb", false},
		{"a**c", "ac", true}, {"*b*b*", "abab", true}, {"*b*b*b*", "abab", false}, {"a.c", "abc", false}, {"*ab", "aab", true}, {"ab*", "a", false},
	} {
		if got := matches(test.pattern, test.name); got != test.want {
			t.Errorf("%s, %s: %t", test.pattern, test.name, got)
		}
	}
}

// TestLongPatternsTakeLittle checks that a pattern of megabytes with as many stars needs little
// more memory than its own size.
func TestLongPatternsTakeLittle(t *testing.T) {
	pattern := strings.Repeat("*a", 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		_ = matches(pattern, strings.Repeat("a", 63))
	}
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > 10*64<<20 {
		t.Errorf("%d MiB were allocated", made>>20)
	}
}
