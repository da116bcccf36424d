package cpuset

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"":                "",
		"\n":              "",
		"0":               "0",
		"0-3\n":           "0-3",
		"3,2,1,0":         "0-3",
		"0-3,128-131":     "0-3,128-131",
		" 1 , 5 ":         "1,5",
		"0-2,2-4":         "0-4",
		"0-15:2/4":        "0-1,4-5,8-9,12-13",
		"8191":            "8191",
		"63-64":           "63-64",
		"0,2,4,6-7,63-65": "0,2,4,6-7,63-65",
	} {
		s, err := Parse(in)
		if err != nil || s.String() != want {
			t.Errorf("Parse(%q) = %q, %v; want %q", in, s, err, want)
		}
	}
	for _, in := range []string{"a", "-1", "1-", "3-1", "8192", "0-99999999999999999999", "1,,2", "0x3", "1-2-3", "0-7:0/2", "0-7:3/2", "0-7:2", "+1", "٣"} {
		if s, err := Parse(in); err == nil {
			t.Errorf("Parse(%q) = %q, want an error", in, s)
		}
	}
}

func ids(t *rapid.T, label string) []int {
	v := rapid.SliceOfDistinct(rapid.IntRange(0, 300), rapid.ID[int]).Draw(t, label)
	slices.Sort(v)
	return v
}

func TestSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := ids(t, "a"), ids(t, "b")
		sa, sb := Of(a...), Of(b...)
		back, err := Parse(sa.String())
		if err != nil || !back.Equal(sa) || !slices.Equal(sa.IDs(), append([]int{}, a...)) || sa.Len() != len(a) {
			t.Fatalf("%v prints as %q and reads back as %v, %v", a, sa, back, err)
		}
		union, inter, minus := sa.Union(sb), sa.Intersect(sb), sa.Minus(sb)
		for id := range 310 {
			ina, inb := slices.Contains(a, id), slices.Contains(b, id)
			if sa.Contains(id) != ina || union.Contains(id) != (ina || inb) || inter.Contains(id) != (ina && inb) || minus.Contains(id) != (ina && !inb) {
				t.Fatalf("membership of %d is wrong", id)
			}
		}
		if !minus.Union(inter).Equal(sa) || minus.Overlaps(sb) || !inter.SubsetOf(sa) || sa.Overlaps(sb) == inter.IsEmpty() {
			t.Fatal("set algebra does not hold")
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("0-3,128-131")
	f.Add("0-31:2/4")
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err != nil {
			return
		}
		if back, err := Parse(s.String()); err != nil || !back.Equal(s) {
			t.Fatalf("%q parses to %q, which reads back as %q, %v", in, s, back, err)
		}
	})
}
