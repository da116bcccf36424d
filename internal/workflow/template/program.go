package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Program holds the parsed tags of one value. Apply resolves them in a deep copy of that value.
type Program struct {
	sites []site
}

// site is one string in a value, with the path to it.
type site struct {
	path  []step
	where string
	text  *Text
	key   *Text // parsed map key at the end of path; nil if the string is not a map value
	raw   bool  // the string is raw JSON: inserted values are quoted for JSON
}

// step is one step of a path: a field or element by index, a map value by key, or a pointer.
type step struct {
	index int
	key   string
	kind  reflect.Kind
}

// Compile parses the tags in value, a pointer to a struct. skip are JSON names of top-level fields
// to leave out.
func Compile(value any, skip ...string) (*Program, error) {
	p := &Program{}
	c := compiler{program: p, skip: skip}
	err := c.walk(reflect.ValueOf(value).Elem())
	return p, err
}

// HasTags reports whether the value contains any tags.
func (p *Program) HasTags() bool { return len(p.sites) > 0 }

// Names calls yield with each variable of a tag and the field that contains the tag. Guarded
// variables may be missing.
func (p *Program) Names(yield func(where, name string, guarded bool)) {
	for _, s := range p.sites {
		for _, text := range []*Text{s.key, s.text} {
			if text != nil {
				text.Names(func(name string, guarded bool) { yield(s.where, name, guarded) })
			}
		}
	}
}

// Check returns an error if an expression in a tag does not compile. The error names the field.
func (p *Program) Check(run Run) error {
	for _, s := range p.sites {
		for _, text := range []*Text{s.key, s.text} {
			if text == nil {
				continue
			}
			if err := text.Check(run); err != nil {
				return fmt.Errorf("%s: %w", s.where, err)
			}
		}
	}
	return nil
}

// compiler finds the tags of a value. Most of a value is zero, and most of the rest has no tags, so
// a site is made from the current path only when a tag is found.
type compiler struct {
	program *Program
	skip    []string
	path    []step
	names   []string // part of where for each step of path
}

// down walks next, which step s below the current path leads to.
func (c *compiler) down(next reflect.Value, s step, name string) error {
	c.path, c.names = append(c.path, s), append(c.names, name)
	err := c.walk(next)
	c.path, c.names = c.path[:len(c.path)-1], c.names[:len(c.names)-1]
	return err
}

func (c *compiler) where() string { return strings.TrimPrefix(strings.Join(c.names, ""), ".") }

func (c *compiler) walk(v reflect.Value) error {
	switch v.Kind() {
	case reflect.String:
		return c.add(v.String(), false)
	case reflect.Pointer:
		if !v.IsNil() {
			return c.down(v.Elem(), step{kind: reflect.Pointer}, "")
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				continue
			}
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !field.IsExported() || len(c.path) == 0 && slices.Contains(c.skip, name) {
				continue
			}
			if name != "" && name != "-" {
				name = "." + name
			} else {
				name = ""
			}
			if err := c.down(v.Field(i), step{index: i, kind: reflect.Struct}, name); err != nil {
				return err
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if bytes.Contains(v.Bytes(), []byte("{{")) {
				return c.add(string(v.Bytes()), true)
			}
			return nil
		}
		for i := range v.Len() {
			if err := c.down(v.Index(i), step{index: i, kind: reflect.Slice}, "["+strconv.Itoa(i)+"]"); err != nil {
				return err
			}
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return nil
		}
		keys := map[string]bool{}
		for _, k := range v.MapKeys() {
			keys[k.String()] = true
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			value := v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key()))
			if value.Kind() == reflect.String {
				if err := c.addEntry(key, value.String()); err != nil {
					return err
				}
				continue
			}
			if err := c.down(value, step{key: key, kind: reflect.Map}, "."+key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *compiler) add(source string, raw bool) error {
	if !strings.Contains(source, "{{") {
		return nil
	}
	text, err := Parse(source)
	if err != nil {
		return fmt.Errorf("%s: %w", c.where(), err)
	}
	if text.HasTags() {
		c.program.sites = append(c.program.sites, site{path: slices.Clone(c.path), where: c.where(), text: text, raw: raw})
	}
	return nil
}

// addEntry adds an entry of a map of strings.
func (c *compiler) addEntry(key, value string) error {
	if !strings.Contains(key, "{{") && !strings.Contains(value, "{{") {
		return nil
	}
	where := strings.TrimPrefix(c.where()+"."+key, ".")
	k, err := Parse(key)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	v, err := Parse(value)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	path := append(slices.Clone(c.path), step{key: key, kind: reflect.Map})
	c.program.sites = append(c.program.sites, site{path: path, where: where, text: v, key: k})
	return nil
}

// Apply resolves the tags in value, a pointer to a deep copy of the compiled value. The error names
// the field.
func (p *Program) Apply(value any, passes []Scope, strict ...string) error {
	root := reflect.ValueOf(value).Elem()
	total := newBudget()
	for i := range p.sites {
		s := &p.sites[i]
		if err := s.apply(root, passes, total, strict); err != nil {
			return fmt.Errorf("%s: %w", s.where, err)
		}
	}
	return nil
}

func (s *site) apply(v reflect.Value, passes []Scope, total *budget, strict []string) error {
	scopes := passes
	if s.raw {
		scopes = make([]Scope, len(passes))
		for i, p := range passes {
			scopes[i] = quoted{p}
		}
	}
	out, err := s.text.resolve(scopes, total, strict)
	if err != nil {
		return err
	}
	for _, st := range s.path {
		switch st.kind {
		case reflect.Pointer:
			v = v.Elem()
		case reflect.Struct:
			v = v.Field(st.index)
		case reflect.Slice:
			v = v.Index(st.index)
		case reflect.Map:
			key := reflect.ValueOf(st.key).Convert(v.Type().Key())
			if s.key != nil {
				name, err := s.key.resolve(passes, total, strict)
				if err != nil {
					return err
				}
				v.SetMapIndex(key, reflect.Value{})
				v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), reflect.ValueOf(out).Convert(v.Type().Elem()))
				return nil
			}
			// Values of maps cannot be set in place.
			return s.applyInMap(v, key, st, passes, total, strict)
		}
	}
	if s.raw {
		if !json.Valid([]byte(out)) {
			return fmt.Errorf("is not JSON after substitution")
		}
		v.Set(reflect.ValueOf([]byte(out)).Convert(v.Type()))
		return nil
	}
	v.SetString(out)
	return nil
}

func (s *site) applyInMap(m, key reflect.Value, at step, passes []Scope, total *budget, strict []string) error {
	entry := reflect.New(m.Type().Elem()).Elem()
	entry.Set(m.MapIndex(key))
	rest := *s
	for i, st := range s.path {
		if st == at {
			rest.path = s.path[i+1:]
			break
		}
	}
	if err := rest.apply(entry, passes, total, strict); err != nil {
		return err
	}
	m.SetMapIndex(key, entry)
	return nil
}

// quoted is a scope whose texts are escaped for JSON strings.
type quoted struct{ Scope }

func (q quoted) Lookup(name string) (Value, bool) {
	v, found := q.Scope.Lookup(name)
	if found {
		text, _ := json.Marshal(v.Text)
		v.Text = string(text[1 : len(text)-1])
	}
	return v, found
}
