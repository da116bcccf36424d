package controller

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestAlikeGivesBackWhatItWasGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p alike
		for range rapid.IntRange(1, 5).Draw(t, "texts") {
			text := []byte(rapid.StringMatching(`[a-d"{}:]{0,400}`).Draw(t, "text"))
			got, err := p.unpack(p.pack(text))
			if err != nil || !bytes.Equal(got, text) {
				t.Fatalf("%q came back as %q: %v", text, got, err)
			}
		}
	})
}

func TestAlikePacksWhatResemblesTheFirst(t *testing.T) {
	var p alike
	object := func(i int) []byte {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"metadata":{"name":"app-%d","uid":"%d"},"data":{`, i, i*7919)
		for n := range 300 {
			fmt.Fprintf(&b, `"key-%d":"value %d",`, n, n*n)
		}
		b.WriteString(`"last":""}}`)
		return b.Bytes()
	}
	p.pack(object(0))
	if text := object(1); len(p.pack(text))*20 > len(text) {
		t.Errorf("%d bytes were packed into %d", len(text), len(p.pack(text)))
	}
}
