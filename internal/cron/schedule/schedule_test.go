package schedule

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		specs    string // separated by ;
		timezone string
		from     string
		want     []string
	}{
		"every five minutes": {"*/5 * * * *", "", "2030-01-01T00:03:20Z",
			[]string{"2030-01-01T00:05:00Z", "2030-01-01T00:10:00Z"}},
		"a time zone": {"0 9 * * *", "Asia/Tokyo", "2030-01-01T00:00:00Z",
			[]string{"2030-01-02T00:00:00Z", "2030-01-03T00:00:00Z"}},
		"time zones of their own": {"CRON_TZ=Asia/Tokyo 0 9 * * *;TZ=Europe/Berlin 0 2 * * *;0 3 * * *", "", "2030-01-01T00:00:00Z",
			[]string{"2030-01-01T01:00:00Z", "2030-01-01T03:00:00Z", "2030-01-02T00:00:00Z"}},
		"several schedules, the same moment once": {"0 * * * *;30 1 * * *;0 0 * * *", "", "2030-01-01T00:59:59Z",
			[]string{"2030-01-01T01:00:00Z", "2030-01-01T01:30:00Z", "2030-01-01T02:00:00Z"}},
		"words": {"@daily", "America/New_York", "2030-07-01T00:00:00Z", []string{"2030-07-01T04:00:00Z"}},
		"every, from the anchor": {"@every 7h", "", "2030-01-01T00:00:00Z",
			[]string{"2030-01-01T05:00:00Z", "2030-01-01T12:00:00Z"}},
		"leap day": {"0 0 29 2 *", "", "2029-01-01T00:00:00Z", []string{"2032-02-29T00:00:00Z"}},
		// New York, 2030-03-10: 02:00 EST is followed by 03:00 EDT.
		"the clock is put forward: a time that does not exist does not come": {"30 2 * * *", "America/New_York", "2030-03-09T12:00:00Z",
			[]string{"2030-03-11T06:30:00Z", "2030-03-12T06:30:00Z"}},
		"the clock is put forward: hourly goes on every hour": {"0 * * * *", "America/New_York", "2030-03-10T05:30:00Z",
			[]string{"2030-03-10T06:00:00Z", "2030-03-10T07:00:00Z", "2030-03-10T08:00:00Z"}},
		"the clock is put forward: a time after it moves in UTC": {"0 9 * * *", "Europe/Berlin", "2030-03-30T00:00:00Z",
			[]string{"2030-03-30T08:00:00Z", "2030-03-31T07:00:00Z"}},
		// New York, 2030-11-03: 01:59 EDT is followed by 01:00 EST.
		"the clock is put back: a time that is shown twice comes twice": {"30 1 * * *", "America/New_York", "2030-11-02T12:00:00Z",
			[]string{"2030-11-03T05:30:00Z", "2030-11-03T06:30:00Z", "2030-11-04T06:30:00Z"}},
		"the clock is put back: hourly goes on every hour": {"0 * * * *", "America/New_York", "2030-11-03T04:30:00Z",
			[]string{"2030-11-03T05:00:00Z", "2030-11-03T06:00:00Z", "2030-11-03T07:00:00Z"}},
		"a midnight that does not exist": {"0 0 * * *", "America/Santiago", "2030-09-07T12:00:00Z", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(strings.Split(c.specs, ";"), c.timezone, at(t, "2029-12-31T22:00:00Z"))
			if err != nil {
				t.Fatal(err)
			}
			now := at(t, c.from)
			for _, want := range c.want {
				next := s.Next(now)
				if got := next.UTC().Format(time.RFC3339); got != want {
					t.Fatalf("after %s: %s, want %s", now.Format(time.RFC3339), got, want)
				}
				now = next
			}
			if n := s.Next(now); !n.After(now) {
				t.Errorf("after %s: %s", now, n)
			}
		})
	}
}

func TestDue(t *testing.T) {
	anchor := at(t, "2030-01-01T00:00:00Z")
	parse := func(specs ...string) *Schedule {
		s, err := Parse(specs, "", anchor)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, c := range map[string]struct {
		s          *Schedule
		since, now string
		want       string
	}{
		"nothing yet":            {parse("0 * * * *"), "2030-01-01T00:00:00Z", "2030-01-01T00:59:59Z", ""},
		"just now":               {parse("0 * * * *"), "2030-01-01T00:00:00Z", "2030-01-01T01:00:00Z", "2030-01-01T01:00:00Z"},
		"not again":              {parse("0 * * * *"), "2030-01-01T01:00:00Z", "2030-01-01T01:30:00Z", ""},
		"the last of many":       {parse("0 * * * *"), "2030-01-01T01:00:00Z", "2030-01-03T07:30:00Z", "2030-01-03T07:00:00Z"},
		"a year of minutes":      {parse("* * * * *"), "2030-01-01T01:00:00Z", "2031-01-03T07:30:10Z", "2031-01-03T07:30:00Z"},
		"a year of seconds":      {parse("@every 1s"), "2030-01-01T01:00:00Z", "2031-01-03T07:30:10Z", "2031-01-03T07:30:10Z"},
		"every, nothing yet":     {parse("@every 1h"), "2030-01-01T00:00:00Z", "2030-01-01T00:59:59Z", ""},
		"every, not again":       {parse("@every 1h"), "2030-01-01T01:00:00Z", "2030-01-01T01:59:59Z", ""},
		"the later of several":   {parse("0 * * * *", "45 * * * *"), "2030-01-01T00:00:00Z", "2030-01-01T02:50:00Z", "2030-01-01T02:45:00Z"},
		"a clock that went back": {parse("0 * * * *"), "2030-01-02T00:00:00Z", "2030-01-01T00:00:00Z", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.s.Due(at(t, c.since), at(t, c.now))
			text := ""
			if !got.IsZero() {
				text = got.UTC().Format(time.RFC3339)
			}
			if text != c.want {
				t.Errorf("%s, want %s", text, c.want)
			}
		})
	}
}

func TestBadSchedulesAreRefused(t *testing.T) {
	for _, c := range []struct{ spec, timezone, want string }{
		{"", "", "schedules"}, {"* * * *", "", "* * * *"}, {"* * * * * *", "", "* * * * * *"}, {"61 * * * *", "", "61"}, {"0 0 30 2 *", "", "never"},
		{"TZ=Europe/Berlin", "", "without a schedule"}, {"CRON_TZ=UTC 0 0 * * *", "Europe/Berlin", "timezone"},
		{"CRON_TZ=Europe/Nowhere 0 0 * * *", "", "Nowhere"}, {"TZ=Local 0 0 * * *", "", "Local"}, {"TZ=UTC CRON_TZ=UTC 0 0 * * *", "", "TZ"}, {"@every 1ms", "", "second"}, {"@every", "", "@every"},
		{"@sometimes", "", "@sometimes"}, {"0 0 * * *", "Europe/Nowhere", "Europe/Nowhere"}, {"0 0 * * *", "Local", "Local"}, {"0 0 * * *", "../etc", "../etc"},
	} {
		if _, err := Parse([]string{c.spec}, c.timezone, time.Time{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q in %q: %v", c.spec, c.timezone, err)
		}
	}
	if _, err := Parse(nil, "", time.Time{}); err == nil {
		t.Error("no schedule at all: accepted")
	}
}

// TestWalkingIsTheSameAsLookingBack checks that iterating with Next finds each time once, in steps
// of any size, and Due after a step is the last time in that step.
func TestWalkingIsTheSameAsLookingBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		specs := rapid.SliceOfN(rapid.SampledFrom([]string{"*/7 * * * *", "0 * * * *", "30 1 * * *", "0 2 * * 0", "15 3 1 * *", "@every 13m", "@hourly"}), 1, 3).Draw(t, "specs")
		zone := rapid.SampledFrom([]string{"", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"}).Draw(t, "zone")
		start := time.Date(2030, time.Month(rapid.IntRange(1, 12).Draw(t, "month")), rapid.IntRange(1, 28).Draw(t, "day"), 0, 0, 0, 0, time.UTC)
		s, err := Parse(specs, zone, start)
		if err != nil {
			t.Fatal(err)
		}
		last := start
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now := last.Add(time.Duration(rapid.IntRange(0, 100_000).Draw(t, "seconds")) * time.Second)
			var want time.Time
			for n := s.Next(last); !n.IsZero() && !n.After(now); n = s.Next(n) {
				want = n
			}
			if got := s.Due(last, now); !got.Equal(want) {
				t.Fatalf("%q in %q: due in (%s, %s]: %s, want %s", specs, zone, last, now, got, want)
			}
			last = now
		}
	})
}
