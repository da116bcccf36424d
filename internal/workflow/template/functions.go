package template

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/Masterminds/sprig/v3"
)

// removed are the functions of sprig that read the environment, the network, a clock or random
// numbers, or that are designed to be expensive. momentFuncs replaces some of them.
var removed = []string{
	"env", "expandenv", "getHostByName",
	"now", "ago", "date", "date_in_zone", "dateInZone", "htmlDate", "htmlDateInZone",
	"randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randInt", "randBytes", "shuffle", "uuidv4",
	"bcrypt", "htpasswd", "derivePassword", "encryptAES", "decryptAES", "genPrivateKey", "buildCustomCert", "genCA",
	"genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey",
}

// sprigFuncs are the remaining functions of sprig. The map is read-only.
var sprigFuncs = func() map[string]reflect.Value {
	funcs := map[string]reflect.Value{}
	for name, f := range sprig.GenericFuncMap() {
		funcs[name] = reflect.ValueOf(f)
	}
	for _, name := range removed {
		delete(funcs, name)
	}
	return funcs
}()

// ownFuncs are functions in addition to those of sprig and of the expression language.
var ownFuncs = map[string]func(args []any) (any, error){
	"asInt":    asInt,
	"asFloat":  asFloat,
	"toJson":   toJSON,
	"jsonpath": jsonPath,
	"repeat": func(args []any) (any, error) {
		s, n, err := stringAndInt(args)
		if err != nil {
			return nil, err
		}
		return strings.Repeat(s, max(0, n)), nil
	},
	"replace": func(args []any) (any, error) {
		s, err := strs(args, 3, 4)
		if err != nil {
			return nil, err
		}
		n := -1
		if len(args) == 4 {
			n = toInt(args[3])
		}
		return strings.Replace(s[0], s[1], s[2], n), nil
	},
	"join": func(args []any) (any, error) {
		if len(args) == 0 || len(args) > 2 {
			return nil, fmt.Errorf("join wants a list and a separator")
		}
		separator := ""
		if len(args) == 2 {
			separator = fmt.Sprint(args[1])
		}
		items, err := list(args[0])
		if err != nil {
			return nil, err
		}
		texts := make([]string, len(items))
		for i, item := range items {
			texts[i] = fmt.Sprint(item)
		}
		return strings.Join(texts, separator), nil
	},
	"uniq": func(args []any) (any, error) {
		if len(args) != 1 {
			return nil, fmt.Errorf("uniq wants a list")
		}
		items, err := list(args[0])
		if err != nil {
			return nil, err
		}
		seen := map[string]bool{}
		var out []any
		for _, item := range items {
			key := fmt.Sprintf("%T %v", item, item)
			if !seen[key] {
				seen[key] = true
				out = append(out, item)
			}
		}
		return out, nil
	},
}

// changes are the functions of sprig that modify a map argument. They get copies, so that variables
// stay unchanged.
var changes = map[string]bool{
	"sprig.set": true, "sprig.unset": true, "sprig.merge": true, "sprig.mustMerge": true, "sprig.mergeOverwrite": true,
	"sprig.mustMergeOverwrite": true,
}

// copied returns a deep copy of the maps and lists of a value.
func copied(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = copied(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = copied(item)
		}
		return out
	}
	return value
}

func arg(args []any, i int) any {
	if i < len(args) {
		return args[i]
	}
	return nil
}

func str(v any) string { s, _ := v.(string); return s }

func toInt(v any) int {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return int(r.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return int(min(r.Uint(), math.MaxInt))
	case reflect.Float32, reflect.Float64:
		return int(max(min(r.Float(), math.MaxInt32), math.MinInt32))
	case reflect.String:
		n, _ := strconv.Atoi(r.String())
		return n
	}
	return 0
}

// bindFunctions adds the called functions to an expression's environment.
func bindFunctions(env map[string]any, calls []string, m *moment) {
	for _, name := range calls {
		own, found := ownFuncs[name]
		if at, is := momentFuncs[name]; is && m != nil {
			own, found = func(args []any) (any, error) { return at(m, args) }, true
		}
		short, isSprig := strings.CutPrefix(name, "sprig.")
		if found && !isSprig {
			env[name] = func(args ...any) (any, error) { return callFunction(name, args, own) }
			continue
		}
		if f, is := sprigFuncs[short]; isSprig && is && !found {
			own, found = func(args []any) (any, error) { return invoke(f, args) }, true
		}
		if !found {
			continue
		}
		group, ok := env["sprig"].(map[string]any)
		if !ok {
			group = map[string]any{}
			env["sprig"] = group
		}
		group[short] = func(args ...any) (any, error) { return callFunction(name, args, own) }
	}
}

func callFunction(name string, args []any, f func([]any) (any, error)) (result any, err error) {
	if changes[name] {
		for i, a := range args {
			args[i] = copied(a)
		}
	}
	defer func() {
		if r := recover(); r != nil { // some of sprig's functions panic on bad arguments
			err = fmt.Errorf("%s: %v", name, r)
		}
	}()
	if result, err = f(args); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return result, nil
}

// invoke calls a function of sprig with arguments converted to its parameter types.
func invoke(f reflect.Value, args []any) (any, error) {
	t := f.Type()
	fixed := t.NumIn()
	if t.IsVariadic() {
		fixed--
	}
	if len(args) < fixed || len(args) > fixed && !t.IsVariadic() {
		return nil, fmt.Errorf("want %d arguments, not %d", fixed, len(args))
	}
	in := make([]reflect.Value, len(args))
	for i, a := range args {
		want := t.In(min(i, t.NumIn()-1))
		if i >= fixed {
			want = want.Elem()
		}
		v := reflect.ValueOf(a)
		switch {
		case !v.IsValid():
			v = reflect.Zero(want)
		case v.Type().AssignableTo(want):
		case numeric(v.Kind()) && numeric(want.Kind()):
			v = v.Convert(want)
		default:
			return nil, fmt.Errorf("argument %d is a %s, not a %s", i+1, v.Type(), want)
		}
		in[i] = v
	}
	out := f.Call(in)
	if len(out) == 2 && !out[1].IsNil() {
		return nil, out[1].Interface().(error)
	}
	return out[0].Interface(), nil
}

func numeric(k reflect.Kind) bool {
	return k >= reflect.Int && k <= reflect.Float64 && k != reflect.Uintptr
}

func asInt(args []any) (any, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("want one argument")
	}
	if s, ok := args[0].(string); ok {
		return strconv.Atoi(strings.TrimSpace(s))
	}
	if !numeric(reflect.ValueOf(args[0]).Kind()) {
		return nil, fmt.Errorf("%T is not a number", args[0])
	}
	return toInt(args[0]), nil
}

func asFloat(args []any) (any, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("want one argument")
	}
	if s, ok := args[0].(string); ok {
		return strconv.ParseFloat(strings.TrimSpace(s), 64)
	}
	v := reflect.ValueOf(args[0])
	if !numeric(v.Kind()) {
		return nil, fmt.Errorf("%T is not a number", args[0])
	}
	return v.Convert(reflect.TypeFor[float64]()).Float(), nil
}

func toJSON(args []any) (any, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("want one argument")
	}
	out, err := json.Marshal(args[0])
	return string(out), err
}

func stringAndInt(args []any) (string, int, error) {
	if len(args) != 2 {
		return "", 0, fmt.Errorf("want a string and a number")
	}
	s, ok := args[0].(string)
	if !ok {
		return "", 0, fmt.Errorf("%T is not a string", args[0])
	}
	return s, toInt(args[1]), nil
}

func strs(args []any, least, most int) ([]string, error) {
	if len(args) < least || len(args) > most {
		return nil, fmt.Errorf("want %d arguments, not %d", least, len(args))
	}
	out := make([]string, least)
	for i := range out {
		s, ok := args[i].(string)
		if !ok {
			return nil, fmt.Errorf("argument %d is a %T, not a string", i+1, args[i])
		}
		out[i] = s
	}
	return out, nil
}

func list(v any) ([]any, error) {
	if items, ok := v.([]any); ok {
		return items, nil
	}
	r := reflect.ValueOf(v)
	if r.Kind() != reflect.Slice {
		return nil, fmt.Errorf("%T is not a list", v)
	}
	items := make([]any, r.Len())
	for i := range items {
		items[i] = r.Index(i).Interface()
	}
	return items, nil
}
