package scenario

import "testing"

func TestParseShape(t *testing.T) {
	for text, want := range map[string]Shape{
		"1x1":     {1, 1},
		" 500x20": {500, 20},
		"1x10000": {1, 10000},
	} {
		got, err := ParseShape(text)
		if err != nil || got != want {
			t.Errorf("ParseShape(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "5", "x5", "5x", "0x1", "1x0", "-1x1", "1x2x3", "100000x100000", "9999999999999999999x1"} {
		if got, err := ParseShape(text); err == nil {
			t.Errorf("ParseShape(%q) = %v, want an error", text, got)
		}
	}
}
