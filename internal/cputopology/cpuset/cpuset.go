// Package cpuset implements sets of CPU numbers as bitsets, and parses and prints the kernel's list
// format ("0-3,128-131").
package cpuset

import (
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/clip"
)

// Max is the number of CPUs that a set can hold: ids 0 to Max-1. It is the largest NR_CPUS of Linux
// on x86-64, and bounds the memory that a hostile list can request.
const Max = 8192

// Set is an immutable set of CPU ids. The zero value is the empty set. Sets made by this package
// have no trailing zero words, so equal sets have equal words.
type Set struct{ words []uint64 }

// Of returns the set of the given ids. It panics if an id is outside [0, Max): callers pass ids
// that a parser has checked.
func Of(ids ...int) Set {
	var b Builder
	for _, id := range ids {
		b.Add(id)
	}
	return b.Set()
}

// Range returns the set lo..hi, both included; it is empty if hi < lo.
func Range(lo, hi int) Set {
	var b Builder
	for id := lo; id <= hi; id++ {
		b.Add(id)
	}
	return b.Set()
}

// Builder collects ids for a Set. Its zero value is ready.
type Builder struct{ words []uint64 }

// Add adds an id. It panics if the id is outside [0, Max).
func (b *Builder) Add(id int) {
	if id < 0 || id >= Max {
		panic(fmt.Sprintf("cpuset: CPU %d outside 0-%d", id, Max-1))
	}
	w := id >> 6
	for len(b.words) <= w {
		b.words = append(b.words, 0)
	}
	b.words[w] |= 1 << (id & 63)
}

// Set returns the set of the ids added, and resets the builder to empty.
func (b *Builder) Set() Set {
	s := Set{b.words}
	b.words = nil
	return s
}

// Parse parses the kernel's list format: "0-3,8,10-11". Spaces and a final newline are allowed, and
// "" is the empty set. It also accepts the kernel's stride form "0-31:2/4" (the first 2 of every
// 4).
func Parse(list string) (Set, error) {
	list = strings.TrimSpace(list)
	if list == "" {
		return Set{}, nil
	}
	var b Builder
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		span, stride, strided := strings.Cut(part, ":")
		used, group := 1, 1
		if strided {
			u, g, ok := strings.Cut(stride, "/")
			var err1, err2 error
			used, err1 = number(u)
			group, err2 = number(g)
			if !ok || err1 != nil || err2 != nil || used < 1 || group < used {
				return Set{}, fmt.Errorf("CPU list: %q: the stride is not USED/GROUP", shown(part))
			}
		}
		first, last, isRange := strings.Cut(span, "-")
		lo, err := number(first)
		if err != nil {
			return Set{}, fmt.Errorf("CPU list: %q: %w", shown(part), err)
		}
		hi := lo
		if isRange {
			if hi, err = number(last); err != nil {
				return Set{}, fmt.Errorf("CPU list: %q: %w", shown(part), err)
			}
		}
		if hi < lo {
			return Set{}, fmt.Errorf("CPU list: %q: the range runs backwards", shown(part))
		}
		for id := lo; id <= hi; id++ {
			if (id-lo)%group < used {
				b.Add(id)
			}
		}
	}
	return b.Set(), nil
}

func number(s string) (int, error) {
	if s == "" {
		return 0, fmt.Errorf("a number is missing")
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not a CPU number", shown(s))
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n >= Max {
		return 0, fmt.Errorf("CPU %s is above the limit of %d", shown(s), Max-1)
	}
	return n, nil
}

// shown keeps an error message short when the input is garbage.
func shown(s string) string { return clip.Text(s, 40) }

// MustParse is like Parse but panics on an error. It is for constants.
func MustParse(list string) Set {
	s, err := Parse(list)
	if err != nil {
		panic(err)
	}
	return s
}

// String returns the shortest kernel list format, for example "0-3,8".
func (s Set) String() string {
	var b strings.Builder
	start, prev := -2, -2
	flush := func() {
		if start < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(start))
		if prev > start {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(prev))
		}
	}
	for id := range s.All() {
		if id != prev+1 {
			flush()
			start = id
		}
		prev = id
	}
	flush()
	return b.String()
}

// MarshalText returns the list format. With UnmarshalText it makes a Set a string in JSON and YAML.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *Set) UnmarshalText(text []byte) error {
	v, err := Parse(string(text))
	if err == nil {
		*s = v
	}
	return err
}

// All yields the ids in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for w, word := range s.words {
			for ; word != 0; word &= word - 1 {
				if !yield(w<<6 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// IDs returns the ids in ascending order.
func (s Set) IDs() []int {
	ids := make([]int, 0, s.Len())
	for id := range s.All() {
		ids = append(ids, id)
	}
	return ids
}

// Len returns the number of ids.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// IsEmpty reports whether the set is empty.
func (s Set) IsEmpty() bool { return len(s.words) == 0 }

// First returns the lowest id, or -1 for the empty set.
func (s Set) First() int {
	for id := range s.All() {
		return id
	}
	return -1
}

// Contains reports whether id is in the set.
func (s Set) Contains(id int) bool {
	return id >= 0 && id>>6 < len(s.words) && s.words[id>>6]&(1<<(id&63)) != 0
}

// Equal reports whether both sets have the same ids.
func (s Set) Equal(t Set) bool {
	if len(s.words) != len(t.words) {
		return false
	}
	for i, w := range s.words {
		if w != t.words[i] {
			return false
		}
	}
	return true
}

// Union returns the ids that are in either set.
func (s Set) Union(t Set) Set {
	if len(s.words) < len(t.words) {
		s, t = t, s
	}
	out := append([]uint64(nil), s.words...)
	for i, w := range t.words {
		out[i] |= w
	}
	return Set{out}
}

// Intersect returns the ids that are in both sets.
func (s Set) Intersect(t Set) Set {
	n := min(len(s.words), len(t.words))
	out := make([]uint64, n)
	for i := range n {
		out[i] = s.words[i] & t.words[i]
	}
	return trimmed(out)
}

// Minus returns the ids of s that are not in t.
func (s Set) Minus(t Set) Set {
	out := append([]uint64(nil), s.words...)
	for i := range min(len(out), len(t.words)) {
		out[i] &^= t.words[i]
	}
	return trimmed(out)
}

// Overlaps reports whether the sets have an id in common.
func (s Set) Overlaps(t Set) bool {
	for i := range min(len(s.words), len(t.words)) {
		if s.words[i]&t.words[i] != 0 {
			return true
		}
	}
	return false
}

// SubsetOf reports whether every id of s is in t.
func (s Set) SubsetOf(t Set) bool {
	for i, w := range s.words {
		if i >= len(t.words) || w&^t.words[i] != 0 {
			return false
		}
	}
	return true
}

func trimmed(words []uint64) Set {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return Set{words}
}
