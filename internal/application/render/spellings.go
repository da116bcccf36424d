package render

import (
	"fmt"
	"strings"
)

// Spellings holds the strings from which the evaluation of a request makes other strings, apart
// from the contents of its placeholders.
//
// This is why filling the placeholders of a result is exact. All that a parametric program
// (stringUse) learns about strings is whether two are equal. So two requests that differ only in
// their placeholders are evaluated in the same way if strings that are equal in one evaluation are
// equal in the other. A string in an evaluation is a sequence of words, numbers and placeholders.
// Two different sequences make the same string only if, at their first difference, words of one
// spell the name in a placeholder of the other. Spell reports whether that is possible.
type Spellings struct {
	words  []string
	signed bool
}

// SpellingsOf returns the Spellings of an open request, or false if its properties cannot be
// decoded.
func SpellingsOf(open *Request, h Placeholders) (*Spellings, bool) {
	w := &Spellings{}
	seen := map[string]bool{"true": true, "false": true, "null": true}
	filled := h.Filled(true)
	add := func(s string) {
		s = strings.ReplaceAll(s, filled.app, "\x00")
		if h.revision != "" {
			s = strings.ReplaceAll(s, filled.revision, "\x00")
		}
		for part := range strings.SplitSeq(s, "\x00") {
			if part != "" {
				seen[part] = true
			}
		}
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, item := range v {
				add(k)
				walk(item)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		case string:
			add(v)
		case int64, float64:
			w.signed = w.signed || strings.Trim(fmt.Sprint(v), "0123456789") != ""
		}
	}
	walk(open.Context.values(false))
	for _, use := range append([]Use{open.Component}, open.Traits...) {
		text := &use.Template.main.Wording
		w.signed = w.signed || text.Signed
		for _, word := range text.Words {
			seen[word] = true
		}
		if len(use.Properties) == 0 {
			continue
		}
		v, err := decode(use.Properties)
		if err != nil {
			return nil, false
		}
		walk(v)
	}
	for word := range seen {
		if word != "" {
			w.words = append(w.words, word)
		}
	}
	return w, true
}

// Spell reports whether the words can spell the contents of one of the placeholders.
func (w *Spellings) Spell(h Placeholders) bool {
	return w.spell(h.app, h.revision) || h.revision != "" && w.spell(h.revision, h.app)
}

// spell reports whether name can be spelled by the end of a word, then whole words, then the
// beginning of a word or of a placeholder's contents. other is the contents of the other
// placeholder.
func (w *Spellings) spell(name, other string) bool {
	digits := "0123456789"
	if w.signed {
		digits += "+-.eE"
	}
	reached := make([]bool, len(name))
	reach := func(n int) bool {
		if n < len(name) {
			reached[n] = true
		}
		return n >= len(name)
	}
	number := func(from int) bool { // a number, or the end of one
		n := from
		for n < len(name) && strings.IndexByte(digits, name[n]) >= 0 {
			if n++; reach(n) {
				return true
			}
		}
		return false
	}
	// 1. The end of a word, or a whole word.
	if number(0) || other != "" &&
		(strings.HasPrefix(other, name) || strings.HasPrefix(name, other) && reach(len(other))) {
		return true
	}
	for _, word := range w.words {
		if strings.Contains(word, name) {
			return true
		}
		for n := 1; n <= min(len(word), len(name)-1); n++ {
			if name[:n] == word[len(word)-n:] {
				reach(n)
			}
		}
	}
	// 2. The rest of the name.
	for at := 1; at < len(name); at++ {
		if !reached[at] {
			continue
		}
		rest := name[at:]
		if strings.HasPrefix(name, rest) || strings.HasPrefix(other, rest) ||
			other != "" && strings.HasPrefix(rest, other) && reach(at+len(other)) || number(at) {
			return true
		}
		for _, word := range w.words {
			if strings.HasPrefix(word, rest) {
				return true
			}
			if strings.HasPrefix(rest, word) {
				reach(at + len(word))
			}
		}
	}
	return false
}
