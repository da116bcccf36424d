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

func TestShapesAreScaled(t *testing.T) {
	for scale, want := range map[float64]string{
		1:     "10000x1 5000x2 2000x5 1000x10 500x20 200x50 100x100 50x200 20x500 1x10000",
		0.05:  "500x1 250x2 100x5 50x10 25x20 10x50 5x100 3x200 1x500 1x500",
		0.001: "10x1 5x2 2x5 1x10 1x20 1x50 1x100 1x200 1x500 1x10",
	} {
		got := ""
		for _, s := range Shapes(scale) {
			got += " " + s.String()
		}
		if got != " "+want {
			t.Errorf("at scale %v:%s, want %s", scale, got, want)
		}
	}
}
