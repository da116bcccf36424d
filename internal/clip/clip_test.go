package clip

import "testing"

func TestText(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		max  int
		want string
	}{
		"nothing":                        {"", 5, ""},
		"what fits stays":                {"größer", 8, "größer"},
		"what is too long ends there":    {"abcdefghi", 8, "abcde…"},
		"a character that fits stays":    {"größer und größer", 7, "grö…"},
		"no character is split":          {"größer und größer", 6, "gr…"},
		"a long character is not split":  {"日本語日本語", 11, "日本…"},
		"bytes that are no text are cut": {"a\xffb\xff\xff\xff\xff", 6, "ab…"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Text(c.text, c.max); got != c.want || len(got) > c.max {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
