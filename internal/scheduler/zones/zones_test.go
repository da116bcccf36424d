package zones

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWindows(t *testing.T) {
	for sentence, tc := range map[string]struct {
		window string
		at     string
		want   bool
	}{
		"before it begins":                           {"10:00-21:00 UTC", "2026-03-01T09:59:59Z", false},
		"when it begins":                             {"10:00-21:00 UTC", "2026-03-01T10:00:00Z", true},
		"in it":                                      {"10:00-21:00 UTC", "2026-03-01T15:00:00Z", true},
		"in its last second":                         {"10:00-21:00 UTC", "2026-03-01T20:59:59Z", true},
		"when it ends":                               {"10:00-21:00 UTC", "2026-03-01T21:00:00Z", false},
		"over midnight, in the evening":              {"22:00-06:00 UTC", "2026-03-01T23:00:00Z", true},
		"over midnight, in the morning":              {"22:00-06:00 UTC", "2026-03-01T05:59:00Z", true},
		"over midnight, at noon":                     {"22:00-06:00 UTC", "2026-03-01T12:00:00Z", false},
		"the whole day":                              {"08:00-08:00 UTC", "2026-03-01T07:59:00Z", true},
		"until midnight":                             {"20:00-0:00 UTC", "2026-03-01T23:59:00Z", true},
		"after midnight":                             {"20:00-00:00 UTC", "2026-03-01T00:00:00Z", false},
		"hours of one digit":                         {"1:00-2:00 UTC", "2026-03-01T01:30:00Z", true},
		"in winter of another time zone":             {"10:00-11:00 Europe/Berlin", "2026-01-10T09:30:00Z", true},
		"in summer of another time zone":             {"10:00-11:00 Europe/Berlin", "2026-07-10T09:30:00Z", false},
		"an hour that does not exist on this day":    {"02:00-03:00 Europe/Berlin", "2026-03-29T01:30:00Z", false}, // 03:30
		"an hour that comes twice, the first time":   {"02:00-03:00 Europe/Berlin", "2026-10-25T00:30:00Z", true},
		"an hour that comes twice, the second time":  {"02:00-03:00 Europe/Berlin", "2026-10-25T01:30:00Z", true},
		"begins in an hour that does not exist":      {"02:30-06:00 Europe/Berlin", "2026-03-29T01:00:00Z", true}, // 03:00
		"half an hour off, as some time zones are":   {"10:00-11:00 Asia/Kolkata", "2026-01-10T04:30:00Z", true},
		"in another time zone, on another day there": {"22:00-06:00 America/Los_Angeles", "2026-01-10T06:30:00Z", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			w, err := Parse(tc.window)
			if err != nil {
				t.Fatal(err)
			}
			at, err := time.Parse(time.RFC3339, tc.at)
			if err != nil {
				t.Fatal(err)
			}
			if got := w.Contains(at); got != tc.want {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestWindowsThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "want FROM-TO",
		"10:00":                        "want FROM-TO",
		"10:00-25:00":                  `"25:00" is no time of the day`,
		"10-11":                        `"10" is no time of the day`,
		"10:00-11:00 Atlantis/Capital": "time zone: unknown time zone",
		"10:00-11:00-12:00":            "is no time of the day",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q", text, err, want)
		}
	}
}

// TestZonesChangeAtFullMinutes checks that between now and Next no zone opens or closes, that a
// window and its complement are never both open or closed, and that an unknown zone is closed.
func TestZonesChangeAtFullMinutes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		minute := rapid.IntRange(0, 24*60-1)
		w := Window{From: TimeOfDay(minute.Draw(t, "from")), To: TimeOfDay(minute.Draw(t, "to")), In: rapid.SampledFrom([]*time.Location{time.UTC, berlin}).Draw(t, "in")}
		c := Config{Windows: map[string]Window{"a": w, "b": {From: w.To, To: w.From, In: w.In}}}
		now := time.Unix(rapid.Int64Range(1.7e9, 1.9e9).Draw(t, "now"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		next := Next(now)
		if !next.After(now) || next.Sub(now) > time.Minute {
			t.Fatalf("next is %v", next.Sub(now))
		}
		if c.Open("a", now) != c.Open("a", next.Add(-1)) {
			t.Fatalf("%v changes within a minute", w)
		}
		if w.From != w.To && c.Open("a", now) == c.Open("b", now) {
			t.Fatalf("%v and its complement", w)
		}
		if c.Open("c", now) {
			t.Fatal("a zone without a window is open")
		}
	})
}
