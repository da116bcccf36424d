// Package schedule computes the times of cron schedules: the next time and the last due time.
//
// Schedules have five fields (minute, hour, day of month, month, day of week) or are @hourly,
// @daily, @weekly, @monthly, @yearly, or @every DURATION, which counts from the anchor. They refer
// to the wall clock of their time zone: skipped times do not come on the day on which the clock is
// put forward, and repeated times come twice on the day on which it is put back. CronJobs of
// Kubernetes behave the same.
//
// The package is pure except for the time zone database.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// NameBytesMax bounds the name of a cron so that the name of a run, which adds the time, can be a
// label value of its pods.
const NameBytesMax = 63 - len("-1893456000")

// maxSchedules bounds the number of schedules of one Schedule.
const maxSchedules = 100

// Schedule is the union of one or more schedules.
type Schedule struct {
	parts []part
}

type part struct {
	cron cron.Schedule
	// every, if not zero, is the interval of times after anchor.
	every  time.Duration
	anchor time.Time
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse parses schedules in a time zone of the IANA database. An empty timezone means UTC, or the
// zone that a schedule begins with, as in "CRON_TZ=Europe/Berlin 0 9 * * *". anchor is the moment
// that @every counts from. An error names the schedule.
func Parse(specs []string, timezone string, anchor time.Time) (*Schedule, error) {
	switch {
	case len(specs) == 0:
		return nil, errors.New("schedules: at least one is required")
	case len(specs) > maxSchedules:
		return nil, fmt.Errorf("schedules: more than %d", maxSchedules)
	}
	location, err := Location(timezone)
	if err != nil {
		return nil, fmt.Errorf("timezone: %w", err)
	}
	s := &Schedule{}
	for _, spec := range specs {
		p, err := parse(spec, timezone, location, anchor)
		if err != nil {
			return nil, fmt.Errorf("schedules: %q: %w", spec, err)
		}
		s.parts = append(s.parts, p)
	}
	return s, nil
}

// ParseOne parses one schedule that names no time zone.
func ParseOne(spec string, location *time.Location, anchor time.Time) (*Schedule, error) {
	if strings.Contains(spec, "TZ=") {
		return nil, errors.New("must not contain a time zone")
	}
	p, err := parse(spec, "", location, anchor)
	if err != nil {
		return nil, err
	}
	return &Schedule{parts: []part{p}}, nil
}

// Location returns a time zone of the IANA database; an empty name means UTC.
func Location(timezone string) (*time.Location, error) {
	location, err := time.LoadLocation(timezone)
	if err != nil || timezone == "Local" {
		return nil, fmt.Errorf("%q is not known; it takes names such as Europe/Berlin", timezone)
	}
	return location, nil
}

func parse(spec, timezone string, location *time.Location, anchor time.Time) (part, error) {
	if zone, found := strings.CutPrefix(strings.TrimPrefix(spec, "CRON_"), "TZ="); found {
		if timezone != "" {
			return part{}, fmt.Errorf("has a time zone beside the field timezone, which says %s", timezone)
		}
		var err error
		if zone, spec, found = strings.Cut(zone, " "); !found {
			return part{}, errors.New("is a time zone without a schedule")
		}
		if location, err = Location(zone); err != nil {
			return part{}, fmt.Errorf("time zone: %w", err)
		}
		spec = strings.TrimSpace(spec)
	}
	if strings.Contains(spec, "TZ=") { // the parser would accept and ignore it
		return part{}, errors.New("TZ= stands once, at the beginning")
	}
	if strings.HasPrefix(spec, "@every") {
		every, err := time.ParseDuration(strings.TrimSpace(strings.TrimPrefix(spec, "@every")))
		if err != nil || every < time.Second {
			return part{}, errors.New("wants @every DURATION of at least a second, for example @every 1h30m")
		}
		return part{every: every.Truncate(time.Second), anchor: anchor.Truncate(time.Second)}, nil
	}
	parsed, err := parser.Parse(spec)
	if err != nil {
		return part{}, err
	}
	if fields, ok := parsed.(*cron.SpecSchedule); ok {
		fields.Location = location
	}
	p := part{cron: parsed}
	if p.next(anchor).IsZero() {
		return part{}, errors.New("is a date that never comes")
	}
	return p, nil
}

// Next returns the first time after t, or zero if there is none within five years.
func (s *Schedule) Next(t time.Time) time.Time {
	var first time.Time
	for _, p := range s.parts {
		if n := p.next(t); !n.IsZero() && (first.IsZero() || n.Before(first)) {
			first = n
		}
	}
	return first
}

// Due returns the last time after since and not after now, or zero if there is none. Earlier times
// in that range are not due any more.
func (s *Schedule) Due(since, now time.Time) time.Time {
	var last time.Time
	for _, p := range s.parts {
		if d := p.due(since, now); d.After(last) {
			last = d
		}
	}
	return last
}

func (p part) next(t time.Time) time.Time {
	if p.every == 0 {
		return p.cron.Next(t).UTC()
	}
	if t.Before(p.anchor) {
		t = p.anchor
	}
	return p.anchor.Add((t.Sub(p.anchor)/p.every + 1) * p.every).UTC()
}

func (p part) due(since, now time.Time) time.Time {
	if p.every > 0 {
		n := now.Sub(p.anchor) / p.every
		d := p.anchor.Add(n * p.every)
		if n < 1 || !d.After(since) {
			return time.Time{}
		}
		return d.UTC()
	}
	// The library computes only the next time. Steps back of growing size find the last time
	// without iterating over all times of a year.
	for back := time.Minute; ; back *= 4 {
		from := now.Add(-back)
		if from.Before(since) {
			from = since
		}
		var last time.Time
		for n := p.next(from); !n.IsZero() && !n.After(now); n = p.next(n) {
			last = n
		}
		if !last.IsZero() || !from.After(since) {
			return last
		}
	}
}
