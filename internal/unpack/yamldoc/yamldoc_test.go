package yamldoc

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/unpack"
)

// laughs returns YAML in which each line contains the line before ten times.
func laughs(lines int) string {
	var b strings.Builder
	b.WriteString("l0: &l0 [" + strings.Repeat("ha,", 10) + "]\n")
	for i := 1; i < lines; i++ {
		fmt.Fprintf(&b, "l%d: &l%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*l%d,", i-1), 10))
	}
	return b.String()
}

func TestAliasesAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"a long text, many times": "a: &a " + strings.Repeat("x", 250<<10) + "\nb: [" + strings.Repeat("*a,", 80<<10) + "]\n",
		"lists of lists":          laughs(30),
		"a merge of itself":       "a: &a\n  b: *a\n",
		"too long":                strings.Repeat("x", unpack.YAMLBytesMax+1),
		"a second document":       "a: 1\n---\na: &a " + strings.Repeat("x", 100<<10) + "\nb: [" + strings.Repeat("*a,", 10<<10) + "]\n",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ToJSON([]byte(text), "the patch")
		runtime.ReadMemStats(&after)
		var large *unpack.TooLargeError
		if !errors.As(err, &large) || !strings.Contains(err.Error(), "the patch") {
			t.Errorf("%s: %v", name, err)
		}
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 100 {
			t.Errorf("%s: %d MiB were allocated", name, made)
		}
	}
	for text, want := range map[string]string{
		"a: &x {b: 1}\nc: *x\n": `{"a":{"b":1},"c":{"b":1}}`,
		"a: '*&'\n":             `{"a":"*\u0026"}`,
		laughs(3)[:0] + "x: 1":  `{"x":1}`,
	} {
		if got, err := ToJSON([]byte(text), "it"); err != nil || string(got) != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func TestFetchedYAMLIsNotQuoted(t *testing.T) {
	for _, text := range []string{"s3cr3t", "s3cr3t: [", "a: s3cr3t", "\ts3cr3t", "- s3cr3t", "a: *s3cr3t"} {
		var into struct {
			A int `json:"a"`
		}
		err := UnmarshalFetched([]byte(text), &into, "index.yaml")
		if err == nil || strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), "index.yaml") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
