package template

import (
	"strings"
	"testing"
	"time"
)

func TestTypedScope(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	scope := Typed{Clock: now, "c.failed": int64(3), "c.last": now.Add(-time.Minute), "c.never": nil, "c.labels": map[string]string{"a-b": "x"}, Runner: InProcess()}
	for source, want := range map[string]bool{
		"c.failed >= 3":                                           true,
		"c.failed > 3":                                            false,
		"now() - c.last > duration('59s')":                        true,
		"(now() - c.last).Seconds() < 59":                         false,
		"c.never == nil || (now() - c.never).Seconds() > 1":       true,
		"c.labels['a-b'] == 'x' && c.labels['none'] in ['', nil]": true,
	} {
		e, err := CompileExpr(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := e.Bool(scope); err != nil || got != want {
			t.Errorf("%s: %v, %v", source, got, err)
		}
	}
	e, err := CompileExpr("now() == nil")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := e.Text(Typed{Runner: InProcess()}); err == nil || !strings.Contains(err.Error(), "cannot call nil") {
		t.Errorf("a clock where the scope has none: %v", v)
	}
}
