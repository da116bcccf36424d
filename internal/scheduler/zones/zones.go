package zones

import (
	"fmt"
	"strings"
	"time"
)

// EvictEveryDefault is the default of Config.EvictEvery.
const EvictEveryDefault = time.Minute

// Config says which zones there are. A zone of a node that it does not have is never open.
type Config struct {
	// Windows are the hours of each zone.
	Windows map[string]Window
	// EvictEvery is the interval at which pods of closed zones are evicted.
	EvictEvery time.Duration
	// NoEvictions means that pods stay in zones that have closed, until they end.
	NoEvictions bool
}

// Window is a part of each day, from a time of the day to another one that is excluded. If both are
// equal it is the whole day; if the second is earlier, it is on the next day.
type Window struct {
	From, To TimeOfDay
	// In is the time zone; nil means time.Local.
	In *time.Location
}

// TimeOfDay is the number of minutes since midnight.
type TimeOfDay int

// Parse parses a window such as 22:00-06:00, or 22:00-06:00 Europe/Berlin.
func Parse(text string) (Window, error) {
	hours, zone, _ := strings.Cut(strings.TrimSpace(text), " ")
	from, to, found := strings.Cut(hours, "-")
	if !found {
		return Window{}, fmt.Errorf("%q: want FROM-TO, such as 22:00-06:00", text)
	}
	var w Window
	var err error
	if w.From, err = timeOfDay(from); err != nil {
		return Window{}, err
	}
	if w.To, err = timeOfDay(to); err != nil {
		return Window{}, err
	}
	if zone = strings.TrimSpace(zone); zone != "" {
		if w.In, err = time.LoadLocation(zone); err != nil {
			return Window{}, fmt.Errorf("time zone: %w", err)
		}
	}
	return w, nil
}

func timeOfDay(text string) (TimeOfDay, error) {
	t, err := time.Parse("15:04", strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("%q is no time of the day, such as 06:00", text)
	}
	return TimeOfDay(60*t.Hour() + t.Minute()), nil
}

// Contains reports whether a time is in the window.
func (w Window) Contains(t time.Time) bool {
	in := w.In
	if in == nil {
		in = time.Local
	}
	t = t.In(in)
	now := TimeOfDay(60*t.Hour() + t.Minute())
	if w.From < w.To {
		return w.From <= now && now < w.To
	}
	return now >= w.From || now < w.To
}

// Open reports whether a zone is open.
func (c *Config) Open(zone string, now time.Time) bool {
	w, known := c.Windows[zone]
	return known && w.Contains(now)
}

// Next returns when zones may open or close next: windows begin and end with full minutes.
func Next(now time.Time) time.Time { return now.Truncate(time.Minute).Add(time.Minute) }
