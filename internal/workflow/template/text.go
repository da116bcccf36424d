package template

import (
	"errors"
	"fmt"
	"strings"
)

// MaxTextBytes bounds a text before and after substitution. API objects are smaller.
const MaxTextBytes = 4 << 20

// UnresolvedError reports a tag whose variable is unknown.
type UnresolvedError struct{ Tag string }

func (e *UnresolvedError) Error() string { return fmt.Sprintf("failed to resolve {{%s}}", e.Tag) }

// AbsentError reports a tag whose variable is known to have no value.
type AbsentError struct{ Tag, Why string }

func (e *AbsentError) Error() string {
	return fmt.Sprintf("unable to substitute {{%s}}: output is an absent optional (%s)", e.Tag, e.Why)
}

// errTooLong is returned for a text that exceeds MaxTextBytes.
var errTooLong = fmt.Errorf("text is longer than %d bytes after substitution", MaxTextBytes)

// maxTogether bounds all texts of one value together, and maxWork the work of their cheap
// expressions, beyond which a Run evaluates them. compileCost is the number of bytes charged for
// each expression in a substituted text; maxExprs bounds the expressions of one text.
const (
	maxTogether = 32 << 20 // bytes
	maxWork     = 8 * cheapWorkMax
	compileCost = 2000
	maxExprs    = 10_000
)

var errTogether = fmt.Errorf("the texts have more than %d bytes together after substitution", maxTogether)

// budget is what is left of maxTogether and maxWork for the texts of one value.
type budget struct{ bytes, work int }

func newBudget() *budget { return &budget{maxTogether, maxWork} }

func (b *budget) write(n int) error {
	if n > b.bytes {
		b.bytes = 0
		return errTogether
	}
	b.bytes -= n
	return nil
}

// Text is a parsed text.
type Text struct {
	source string
	parts  []part
	nested bool // a tag contains a tag: the text must be resolved pass by pass
}

// part is a tag if it has a name or an expression, and a literal otherwise.
type part struct {
	literal string // for a tag: its source with {{ and }}
	name    string
	expr    *Expr
	inner   *part // the tag inside the tag's source
	before  string
}

// Parse parses a text. It returns an error for a text that is too long, and for an expression that
// cannot be compiled.
func Parse(source string) (*Text, error) {
	t := &Text{source: source}
	if len(source) > MaxTextBytes {
		return nil, errTooLong
	}
	if strings.Count(source, "{{=") > maxExprs {
		return nil, fmt.Errorf("text has more than %d expressions", maxExprs)
	}
	for rest := source; ; {
		open := strings.Index(rest, "{{")
		if open < 0 {
			break
		}
		end := strings.Index(rest[open+2:], "}}")
		if end < 0 {
			break // without an end it is not a tag
		}
		end += open + 2
		if open > 0 {
			t.parts = append(t.parts, part{literal: rest[:open]})
		}
		p, err := parseTag(rest[open : end+2])
		if err != nil {
			return nil, err
		}
		t.nested = t.nested || p.inner != nil
		t.parts = append(t.parts, p)
		rest = rest[end+2:]
		source = rest
	}
	if source != "" && len(t.parts) > 0 {
		t.parts = append(t.parts, part{literal: source})
	}
	return t, nil
}

// Check returns an error if an expression in a tag does not compile.
func (t *Text) Check(run Run) error {
	for i := range t.parts {
		if e := t.parts[i].expr; e != nil {
			if err := e.Check(run); err != nil {
				return fmt.Errorf("in %s: %w", t.parts[i].literal, err)
			}
		}
	}
	return nil
}

// HasTags reports whether the text contains any tags.
func (t *Text) HasTags() bool { return len(t.parts) > 0 }

func parseTag(source string) (part, error) {
	inside := source[2 : len(source)-2]
	if strings.HasPrefix(inside, "=") {
		expr, err := CompileExpr(inside[1:])
		if err != nil {
			return part{}, fmt.Errorf("in {{%s}}: %w", inside, err)
		}
		return part{literal: source, expr: expr}, nil
	}
	p := part{literal: source, name: strings.TrimSpace(inside)}
	if i := strings.LastIndex(inside, "{{"); i >= 0 {
		inner, err := parseTag(inside[i:] + "}}")
		if err != nil {
			return part{}, err
		}
		p.inner, p.before = &inner, "{{"+inside[:i]
	}
	return p, nil
}

// Resolve replaces the tags pass by pass, each pass with the variables of its scope and of the
// earlier scopes. It returns an error if a tag in the strict namespaces (prefixes such as "steps.")
// is unresolved after the last pass.
func (t *Text) Resolve(passes []Scope, strict ...string) (string, error) {
	return t.resolve(passes, newBudget(), strict)
}

func (t *Text) resolve(passes []Scope, total *budget, strict []string) (string, error) {
	if !t.HasTags() {
		return t.source, nil
	}
	all := Scopes(passes)
	if !t.nested {
		out, again, err := t.once(all, total, strict)
		if !again || len(passes) < 2 {
			return out, err
		}
	}
	// A tag inside a tag or inside a value: resolve one pass at a time.
	text := t
	for i := range passes {
		var names []string
		if i == len(passes)-1 {
			names = strict
		}
		out, _, err := text.once(all[:i+1], total, names)
		if err != nil {
			return "", err
		}
		if err := total.write(compileCost * strings.Count(out, "{{=")); err != nil {
			return "", err
		}
		if text, err = Parse(out); err != nil {
			return "", err
		}
	}
	if t.nested { // the last pass may have completed a name
		out, _, err := text.once(all, total, strict)
		return out, err
	}
	return text.source, nil
}

// once replaces the tags whose variables scope has. again is true if an inserted value contains a
// tag.
func (t *Text) once(scope Scope, total *budget, strict []string) (out string, again bool, err error) {
	if !t.HasTags() {
		return t.source, false, nil
	}
	var b strings.Builder
	for i := range t.parts {
		p := &t.parts[i]
		if p.name == "" && p.expr == nil {
			b.WriteString(p.literal)
			continue
		}
		value, err := p.value(scope, total, strict)
		if err != nil {
			return "", false, err
		}
		if b.Len()+len(value) > MaxTextBytes {
			return "", false, errTooLong
		}
		if err := total.write(len(value)); err != nil {
			return "", false, err
		}
		again = again || value != p.literal && strings.Contains(value, "{{")
		b.WriteString(value)
	}
	return b.String(), again, nil
}

// value returns the replacement of a tag, or the tag itself if the scope does not have the
// variable.
func (p *part) value(scope Scope, total *budget, strict []string) (string, error) {
	if p.expr != nil {
		value, err := p.expr.evaluate(scope, asText, total)
		var missing *UnresolvedError
		if errors.As(err, &missing) {
			if !inNamespace(missing.Tag, strict) {
				return p.literal, nil
			}
		}
		if err != nil {
			return "", fmt.Errorf("failed to evaluate %s: %w", p.literal, err)
		}
		return value, nil
	}
	// The names that end in "()", which are Clock, Seed and Runner, are not variables.
	if v, found := scope.Lookup(p.name); found && !strings.HasSuffix(p.name, "()") {
		if v.Absent != "" {
			return "", &AbsentError{p.name, v.Absent}
		}
		return v.Text, nil
	}
	if p.inner != nil {
		inner, err := p.inner.value(scope, total, strict)
		if err != nil {
			return "", err
		}
		if inner != p.inner.literal {
			return p.before + inner, nil // the end of the outer tag follows as a literal
		}
	}
	if inNamespace(p.name, strict) {
		return "", &UnresolvedError{p.name}
	}
	return p.literal, nil
}

// Item is the namespace of the fields of a loop's item. As one of the strict namespaces, it makes a
// field that the item does not have an error; otherwise the field may get its value later.
const Item = "item."

func inNamespace(name string, namespaces []string) bool {
	for _, n := range namespaces {
		if strings.HasPrefix(name, n) && (n == Item || !late(name)) {
			return true
		}
	}
	return false
}

// late reports whether a variable has a value only in a loop, in an attempt, or at the end.
func late(name string) bool {
	switch name {
	case "item", "retries", "workflow.status", "workflow.failures":
		return true
	}
	return strings.HasPrefix(name, "item.") || strings.HasPrefix(name, "lastRetry.")
}

// Names calls yield with the variables of the tags; guarded ones may be missing. For nested tags it
// yields the innermost.
func (t *Text) Names(yield func(name string, guarded bool)) {
	for i := range t.parts {
		p := &t.parts[i]
		for p.inner != nil {
			p = p.inner
		}
		switch {
		case p.expr != nil:
			p.expr.Names(yield)
		case p.name != "":
			yield(p.name, false)
		}
	}
}
