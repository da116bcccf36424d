package template

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// moment is the clock and the source of random numbers of one evaluation. Equal scopes give equal
// moments.
type moment struct {
	now    time.Time
	random *rand.Rand
}

// momentOf returns the time and seed of a scope. now is nil if the scope has no time, or if no
// called function needs one.
func momentOf(scope Scope, calls []string) (now *time.Time, seed string) {
	if !slices.ContainsFunc(calls, func(name string) bool { return momentFuncs[name] != nil }) {
		return nil, ""
	}
	v, found := scope.Lookup(Clock)
	at, is := v.Typed.(time.Time)
	if !found || !is {
		return nil, ""
	}
	text, _ := scope.Lookup(Seed)
	return &at, text.Text
}

func newMoment(now time.Time, seed, source string) *moment {
	return &moment{now, rand.New(rand.NewChaCha8(sha256.Sum256([]byte(seed + "\n" + source))))}
}

// momentFuncs are now() and the functions of sprig that read the clock or random numbers.
var momentFuncs = map[string]func(m *moment, args []any) (any, error){
	"now":       func(m *moment, _ []any) (any, error) { return m.now, nil },
	"sprig.now": func(m *moment, _ []any) (any, error) { return m.now, nil },
	"sprig.ago": func(m *moment, a []any) (any, error) {
		return m.now.Sub(m.time(arg(a, 0))).Round(time.Second).String(), nil
	},
	"sprig.date": func(m *moment, a []any) (any, error) { return m.format(str(arg(a, 0)), arg(a, 1), "UTC") },
	"sprig.dateInZone": func(m *moment, a []any) (any, error) {
		return m.format(str(arg(a, 0)), arg(a, 1), str(arg(a, 2)))
	},
	"sprig.date_in_zone": func(m *moment, a []any) (any, error) {
		return m.format(str(arg(a, 0)), arg(a, 1), str(arg(a, 2)))
	},
	"sprig.htmlDate": func(m *moment, a []any) (any, error) { return m.format(time.DateOnly, arg(a, 0), "UTC") },
	"sprig.htmlDateInZone": func(m *moment, a []any) (any, error) {
		return m.format(time.DateOnly, arg(a, 0), str(arg(a, 1)))
	},

	"sprig.uuidv4":       func(m *moment, _ []any) (any, error) { return m.uuid(), nil },
	"sprig.randAlphaNum": func(m *moment, a []any) (any, error) { return m.text(a, letters+digits) },
	"sprig.randAlpha":    func(m *moment, a []any) (any, error) { return m.text(a, letters) },
	"sprig.randNumeric":  func(m *moment, a []any) (any, error) { return m.text(a, digits) },
	"sprig.randInt": func(m *moment, a []any) (any, error) {
		low, high := toInt(arg(a, 0)), toInt(arg(a, 1))
		if high <= low || high-low <= 0 {
			return nil, fmt.Errorf("no number is at least %d and less than %d", low, high)
		}
		return low + m.random.IntN(high-low), nil
	},
}

const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// maxRandomText bounds the length of a random text.
const maxRandomText = 4096

// time returns a function argument that is a time or a number of seconds since 1970 as a time. For
// any other argument it returns now.
func (m *moment) time(v any) time.Time {
	switch v := v.(type) {
	case time.Time:
		return v
	case *time.Time:
		if v != nil {
			return *v
		}
	case int, int64, int32:
		return time.Unix(int64(toInt(v)), 0)
	}
	return m.now
}

func (m *moment) format(layout string, v any, zone string) (any, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		location = time.UTC
	}
	return m.time(v).In(location).Format(layout), nil
}

func (m *moment) text(args []any, alphabet string) (any, error) {
	n := toInt(arg(args, 0))
	if n < 0 || n > maxRandomText {
		return nil, fmt.Errorf("%d is not a length up to %d", n, maxRandomText)
	}
	out := make([]byte, n)
	for i := range out {
		out[i] = alphabet[m.random.IntN(len(alphabet))]
	}
	return string(out), nil
}

func (m *moment) uuid() string {
	var b [16]byte
	for i := range b {
		b[i] = byte(m.random.UintN(256))
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
