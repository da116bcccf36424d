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

// site is one string, or raw JSON, in a value, with the path to it.
type site struct {
	path  []step
	where string
	text  *Text
	key   *Text    // parsed map key at the end of path; nil if the string is not a map value
	raw   *rawText // in place of text for raw JSON; nil for a string
}

// texts returns all texts of the site.
func (s *site) texts() []*Text {
	switch {
	case s.raw != nil:
		return s.raw.texts
	case s.key != nil:
		return []*Text{s.key, s.text}
	}
	return []*Text{s.text}
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
	return compile(value, func(field string) bool { return !slices.Contains(skip, field) })
}

// CompileFields parses the tags in the top-level fields of value with the given JSON names.
func CompileFields(value any, fields ...string) (*Program, error) {
	return compile(value, func(field string) bool { return slices.Contains(fields, field) })
}

func compile(value any, wanted func(field string) bool) (*Program, error) {
	p := &Program{}
	c := compiler{program: p, wanted: wanted}
	err := c.walk(reflect.ValueOf(value).Elem())
	return p, err
}

// HasTags reports whether the value contains any tags.
func (p *Program) HasTags() bool { return len(p.sites) > 0 }

// Names calls yield with each variable of a tag and the field that contains the tag. Guarded
// variables may be missing.
func (p *Program) Names(yield func(where, name string, guarded bool)) {
	for i := range p.sites {
		s := &p.sites[i]
		for _, text := range s.texts() {
			text.Names(func(name string, guarded bool) { yield(s.where, name, guarded) })
		}
	}
}

// Check returns an error if an expression in a tag does not compile. The error names the field.
func (p *Program) Check(run Run) error {
	for i := range p.sites {
		s := &p.sites[i]
		for _, text := range s.texts() {
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
	wanted  func(field string) bool // of the top-level fields
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
		return c.add(v.String())
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
			if !field.IsExported() || len(c.path) == 0 && !c.wanted(name) {
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
			switch {
			case !bytes.Contains(v.Bytes(), []byte("{{")):
				return nil
			case json.Valid(v.Bytes()):
				return c.addRaw(string(v.Bytes()))
			}
			return c.add(string(v.Bytes())) // a plain text, such as the body of a request
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

func (c *compiler) add(source string) error {
	if !strings.Contains(source, "{{") {
		return nil
	}
	text, err := Parse(source)
	if err != nil {
		return fmt.Errorf("%s: %w", c.where(), err)
	}
	if text.HasTags() {
		c.program.sites = append(c.program.sites, site{path: slices.Clone(c.path), where: c.where(), text: text})
	}
	return nil
}

// addRaw adds raw JSON.
func (c *compiler) addRaw(source string) error {
	raw, err := parseRaw(source)
	if err != nil {
		return fmt.Errorf("%s: %w", c.where(), err)
	}
	if len(raw.texts) > 0 {
		c.program.sites = append(c.program.sites, site{path: slices.Clone(c.path), where: c.where(), raw: raw})
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

// Resolve resolves the tags in value, a pointer to a struct that nothing else uses.
func Resolve(value any, passes []Scope, strict ...string) error {
	program, err := Compile(value)
	if err != nil {
		return err
	}
	return program.Apply(value, passes, strict...)
}

func (s *site) apply(v reflect.Value, passes []Scope, total *budget, strict []string) error {
	var out string
	var err error
	if s.raw != nil {
		out, err = s.raw.resolve(passes, total, strict)
	} else {
		out, err = s.text.resolve(passes, total, strict)
	}
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
	if v.Kind() == reflect.Slice {
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

// rawText is JSON with tags in its strings.
type rawText struct {
	before []string // the JSON before each of texts
	texts  []*Text
	after  string
}

// parseRaw parses the strings with tags of source, which is valid JSON.
func parseRaw(source string) (*rawText, error) {
	r := &rawText{}
	done := 0 // up to here, source is in r.before and r.texts
	for i := 0; i < len(source); i++ {
		if source[i] != '"' {
			continue
		}
		begin := i
		for i++; source[i] != '"'; i++ {
			if source[i] == '\\' {
				i++
			}
		}
		if !strings.Contains(source[begin:i], "{{") {
			continue
		}
		var plain string
		if err := json.Unmarshal([]byte(source[begin:i+1]), &plain); err != nil {
			return nil, err
		}
		text, err := Parse(plain)
		if err != nil {
			return nil, err
		}
		if text.HasTags() {
			r.before, r.texts = append(r.before, source[done:begin]), append(r.texts, text)
			done = i + 1
		}
	}
	r.after = source[done:]
	return r, nil
}

// resolve is Text.resolve for all strings. What was inserted is quoted as a part of its string.
func (r *rawText) resolve(passes []Scope, total *budget, strict []string) (string, error) {
	var b strings.Builder
	for i, text := range r.texts {
		out, err := text.resolve(passes, total, strict)
		if err != nil {
			return "", err
		}
		quoted, _ := json.Marshal(out) // marshalling a string cannot fail
		if b.WriteString(r.before[i]); b.Len()+len(quoted) > MaxTextBytes {
			return "", errTooLong
		}
		b.Write(quoted)
	}
	b.WriteString(r.after)
	return b.String(), nil
}
