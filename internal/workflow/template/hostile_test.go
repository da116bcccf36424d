package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/parser"

	"lockstep.dev/lockstep/internal/sandbox"

	"lockstep.dev/lockstep/internal/race"
)

func TestMain(m *testing.M) {
	table := sandbox.Table{}
	for name, f := range Evaluators() {
		table[name] = f
	}
	sandbox.Main(table)
	os.Exit(m.Run())
}

// madeMax bounds the total allocations of one evaluation in the calling process, in bytes.
const madeMax = 64 << 20

// measure runs an evaluation and fails if it allocates too much in this process.
func measure(t *testing.T, what string, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > madeMax {
		t.Errorf("%s: %d MiB were allocated", shortened(what), made>>20)
	}
}

func shortened(s string) string { return s[:min(len(s), 100)] }

// hostilePool returns a pool of children with a tenth of the CPU time of a manager's pool.
func hostilePool(t testing.TB) (run Run, asked *int) {
	pool, err := sandbox.New(sandbox.Config{Limits: sandbox.Limits{CPU: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	asked = new(int)
	return func(evaluator string, request []byte) ([]byte, error) {
		*asked++
		return pool.Do(context.Background(), "hostile", evaluator, request)
	}, asked
}

var hostileScope = Map{
	"long": strings.Repeat("a", 1<<20), "seps": strings.Repeat("-", 1<<20), "json": "[" + strings.Repeat("[],", 300_000) + "[]]",
	"mixed": strings.Repeat("ab ", 100_000), "pattern": "(a|aa)?{1,500}b",
}

var hostileExpressions = []string{
	`sprig.repeat(2147483648, "a")`, `repeat("a", 1000000000)`, `repeat(repeat("a", 100000), 100000)`,
	`1..1000000000`, `len(map(1..100000, map(1..100000, #)))`, `all(1..100000, all(1..100000, true))`, `reduce(1..100000, #acc + "aaaaaaaaaa", "")`, `reduce(1..60, #acc + #acc, "a")`,
	`let d = sprig.dict("a", 1); sprig.toJson(sprig.set(d, "", d))`, `let d = sprig.dict("a", 1); [sprig.set(d, "", d), string(d)]`,
	`long matches "(a?){1000}b"`, `long matches pattern`, `sprig.regexMatch("((a?){100}){10}b", long)`,
	`sprig.regexFindAll("a.*b|a", long, -1)`, `sprig.regexReplaceAll("", long, "cccccccccccccccccccccccccccc")`, `sprig.regexMatch("((((a{1,100}){1,100}){1,100}){1,100})", "a")`,
	// ten times the number compiled before
	`"a" matches "` + strings.Repeat(`(\\pL{1000})`, 800) + `"`,
	`sprig.split("-", seps)`, `split(seps, "-")`, `split(long, "")`, `sprig.untilStep(0, 1000000000, 1)`, `sprig.until(1000000000)`, `sprig.seq(1, 1000000000)`, `sprig.indent(1000000000, "a")`,
	`sprig.wrapWith(1, long, long)`, `sprig.semverCompare(sprig.repeat(20000, "1 || "), "1.0.0")`, `sprig.fromJson(json)`, `fromJSON(json)`, `jsonpath(json, "$..*..*..*")`,
	`jsonpath(json, "$[?(count($..*) > 1)]")`, `jsonpath(json, "$..[*,*,*,*,*,*,*,*][*,*,*]")`, `jsonpath("[1]", "$" + repeat("..*", 100))`, `jsonpath("[1]", "$" + repeat("[0]", 1000000))`,
	`jsonpath("[1]", "$[?" + repeat("(", 1000000) + "@" + repeat(")", 1000000) + "]")`, `jsonpath("[\"" + long + "\"]", "$[?search(@, '((a?){100}){10}b')]")`, `jsonpath(json, "$[::1]" + repeat("[::1]", 200))`,
	`uniq(fromJSON(json))`, `sprig.without(fromJSON(json), 1)`, `sprig.round(1, 1000000000)`, `sprig.chunk(1, 1..1000000)`, `sprig.genPrivateKey("rsa")`, `sprig.getHostByName("localhost")`,
	`let a = [long, long, long, long]; let b = [a, a, a, a]; let c = [b, b, b, b]; string([c, c, c, c])`,
	`let a = {"x": long, "y": long}; let b = {"x": a, "y": a}; let c = {"x": b, "y": b}; sprig.merge(c, b, a, c)`,
	`replace(long, "a", long)`, `join(map(1..1000, long), long)`, `sprig.toDecimal(long)`, `groupBy(1..100000, string(#))`, `sortBy(1..100000, -#)`,
	"1" + strings.Repeat("+long", 400), "[" + strings.Repeat("long,", 400) + "1] == 1", strings.Repeat("string([", 400) + "long" + strings.Repeat("])", 400),
	strings.Repeat("(", 8000) + "1" + strings.Repeat(")", 8000), strings.Repeat("!", 16000) + "true", strings.Repeat("-", 16000) + "1", strings.Repeat("[", 8000) + strings.Repeat("]", 8000),
	"1" + strings.Repeat("+1", 8000), strings.Repeat("a?.", 5000) + "b", strings.Repeat("(", 80_000) + "1" + strings.Repeat(")", 80_000), strings.Repeat("true?", 3000) + "1" + strings.Repeat(":1", 3000),
}

// TestHostileExpressionsEndInTheirChild checks that an expression uses its resources in a child:
// this process neither grows nor ends, and other requests are answered.
func TestHostileExpressionsEndInTheirChild(t *testing.T) {
	run, asked := hostilePool(t)
	exceeded := 0
	for _, source := range hostileExpressions {
		measure(t, source, func() {
			e, err := CompileExpr(source)
			if err == nil {
				_, err = e.Text(Scopes{hostileScope, Typed{Runner: run}})
			}
			if over := (*sandbox.Exceeded)(nil); errors.As(err, &over) {
				exceeded++
			}
		})
		e, err := CompileExpr(`sprig.upper("canary")`)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := e.Text(Typed{Runner: run}); err != nil || text != "CANARY" {
			t.Fatalf("after %s: %q, %v", shortened(source), text, err)
		}
	}
	t.Logf("%d of %d expressions exceeded a limit, %d requests", exceeded, len(hostileExpressions), *asked)
	if exceeded < 10 {
		t.Errorf("%d expressions exceeded a limit: do they arrive in a child?", exceeded)
	}
}

func TestHostileConditionsEndInTheirChild(t *testing.T) {
	run, asked := hostilePool(t)
	for _, c := range []string{
		"'" + strings.Repeat("a", 100<<10) + "' =~ '(a?){1000}b'", "'" + strings.Repeat("a", 100<<10) + "' !~ '((a?){100}){10}b'",
		"'a' =~ '(((a{1,100}){1,100}){1,100})'", "'a' =~ '" + strings.Repeat(`(\pL{1000})`, 800) + "'", strings.Repeat("1 + ", 60<<10) + "1 == 1",
		strings.Repeat("true && ", 30<<10) + "true", "'" + strings.Repeat("a", 3<<20) + "' in ('a')", strings.Repeat("'a' + ", 40<<10) + "'a' == 'b'",
		strings.Repeat("-", 200<<10) + "1 == 1", strings.Repeat("~", 200<<10) + "1 == 1", strings.Repeat("(", 1<<20) + "true" + strings.Repeat(")", 1<<20),
	} {
		before := *asked
		measure(t, c, func() { _, _ = When(c, run) })
		if *asked == before {
			t.Errorf("%s was decided in this process", shortened(c))
		}
	}
	if ok, err := When("'abc' =~ '^a'", run); err != nil || !ok {
		t.Errorf("%v, %v", ok, err)
	}
	for _, c := range []string{strings.Repeat("(", 40) + "true" + strings.Repeat(")", 40), "1 ** 1000000000 == 1", "1 << 1000000000 == 1", "Succeeded == Succeeded && 3 > 2"} {
		before := *asked
		measure(t, c, func() { _, _ = When(c, run) })
		if *asked != before {
			t.Errorf("%s was not decided in this process", shortened(c))
		}
	}
}

// TestManyExpressionsAreStopped checks that the expressions of one text share one budget, and so do
// the texts of one value.
func TestManyExpressionsAreStopped(t *testing.T) {
	run, asked := hostilePool(t)
	scope := []Scope{Map{"x": "1"}, Map{"v": strings.Repeat(`{{=len(repeat("a", 1000000))}}`, 100_000)}, Typed{Runner: run}}
	for what, source := range map[string]string{"a text": strings.Repeat(`{{=len(repeat("a", 1000000))}}`, 30_000), "a value": "{{v}}"} {
		measure(t, what, func() {
			text, err := Parse(source)
			if err == nil {
				_, err = text.Resolve(append(scope, Map{}))
			}
			if err == nil {
				t.Errorf("%s of many expressions was evaluated", what)
			}
		})
	}
	if *asked > 0 {
		t.Errorf("%d requests", *asked)
	}
}

// TestOnlyWhatIsListedIsCheap checks that only the functions in cheapFunctions and the operators in
// cheapOperators are evaluated in this process.
func TestOnlyWhatIsListedIsCheap(t *testing.T) {
	// Before you add a function here, show that it never returns more bytes than its arguments
	// have, even when applied to its own results.
	if got, want := slices.Sorted(maps.Keys(cheapFunctions)), []string{"asFloat", "asInt", "float", "int", "len", "string"}; !slices.Equal(got, want) {
		t.Errorf("the cheap functions are %v, not %v", got, want)
	}
	if n := len(cheapOperators); n != 20 {
		t.Errorf("there are %d cheap operators", n)
	}
	isCheap := func(source string) bool {
		tree, err := parser.Parse(source)
		if err != nil {
			return false
		}
		_, ok := cheap(tree.Node)
		return ok
	}
	names := slices.Concat(builtin.Names, slices.Collect(maps.Keys(ownFuncs)), slices.Collect(maps.Keys(momentFuncs)), []string{"anything", "a.b", "sprig.upper", "$env"})
	for name := range sprigFuncs {
		names = append(names, "sprig."+name)
	}
	tried := 0
	for _, name := range names {
		for _, call := range []string{name + "()", name + "(x)", name + "(x, y)", name + "(x, # > 1)", "x | " + name + "()", name + "(x).y", "[" + name + "(x)]", "x." + name + "()"} {
			tried++
			if isCheap(call) && !cheapFunctions[name] {
				t.Errorf("%s is cheap", call)
			}
		}
	}
	for _, source := range []string{"1..x", "x matches 'a'", "x ** 2", "x[1:2]", "let a = x; a", "{a: x}", "x; y", "x | len() | repeat(3)", "x not matches 'a'"} {
		if isCheap(source) {
			t.Errorf("%s is cheap", source)
		}
	}
	for _, source := range []string{"asInt(inputs.parameters['a-b']) + 1 > 3", "!(x in ['a', 'b']) && (y?.z ?? 'none') == 'c'", "x ? string(y) : len(z) % 2", "not (x contains 'a')"} {
		if !isCheap(source) {
			t.Errorf("%s is not cheap", source)
		}
	}
	if tried < 1000 {
		t.Errorf("%d calls were tried", tried)
	}
}

// randomCheap returns a random cheap expression.
func randomCheap(r *rand.Rand, depth int) string {
	if depth == 0 {
		return []string{"long", "list", "d", "d.k", "'x'", "3", "n", "nil", "2.5", "true", "d['k']", "list[0]"}[r.IntN(12)]
	}
	next := func() string { return randomCheap(r, depth-1) }
	switch r.IntN(5) {
	case 0:
		return "(" + next() + " ? " + next() + " : " + next() + ")"
	case 1:
		return []string{"asInt", "asFloat", "int", "float", "len", "string"}[r.IntN(6)] + "(" + next() + ")"
	case 2:
		return "[" + next() + ", " + next() + "]"
	}
	operators := slices.Sorted(maps.Keys(cheapOperators))
	return "(" + next() + " " + operators[r.IntN(len(operators))] + " " + next() + ")"
}

// TestCheapExpressionsKeepToTheirBound checks that a cheap expression stays within its bound, and
// gives the same result as in a child.
func TestCheapExpressionsKeepToTheirBound(t *testing.T) {
	seed := time.Now().UnixNano()
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	other := InProcess()
	evaluated := 0
	for i := range 5000 {
		scope := Typed{"long": strings.Repeat("1", 1<<r.IntN(16)), "list": []any{"a", 1, map[string]any{"k": strings.Repeat("v", 1<<r.IntN(14))}}, "d": map[string]any{"k": "v"}, "n": 7}
		source := randomCheap(r, 1+i%5)
		e, err := CompileExpr(source)
		if err != nil {
			continue // operands whose types do not match
		}
		if e.program == nil && len(source) <= cheapSourceMax {
			t.Fatalf("seed %d: %s is not cheap", seed, source)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := e.Text(scope) // without a Runner
		runtime.ReadMemStats(&after)
		if errors.Is(err, errNoRunner) {
			continue
		}
		evaluated++
		if made := after.TotalAlloc - before.TotalAlloc; made > 4*cheapWorkMax {
			t.Errorf("seed %d: %s: %d MiB were allocated", seed, source, made>>20)
		}
		e.program = nil
		scope[Runner] = other
		want, wantErr := e.Text(scope)
		if got != want || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Errorf("seed %d: %s: %q, %v here; %q, %v in a child", seed, source, shortened(got), err, shortened(want), wantErr)
		}
	}
	if evaluated < 500 {
		t.Errorf("seed %d: %d were evaluated", seed, evaluated)
	}
}

// TestLargeVariablesAreForAChild checks that with a large variable even a cheap expression is
// evaluated in a child.
func TestLargeVariablesAreForAChild(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector multiplies the CPU time that is limited here")
	}
	run, asked := hostilePool(t)
	e, err := CompileExpr("a == b")
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int]int{1 << 10: 0, 100 << 10: 0, 3 << 20: 1} {
		*asked = 0
		text := strings.Repeat("a", size)
		if same, err := e.Bool(Scopes{Map{"a": text, "b": text}, Typed{Runner: run}}); err != nil || !same || *asked != want {
			t.Errorf("%d bytes: %v, %v, %d requests", size, same, err, *asked)
		}
	}
	large := strings.Repeat("a", 80<<20)
	for range 8 { // the variables are written in any order
		if _, err := e.Bool(Scopes{Map{"a": large, "b": "b"}, Typed{Runner: run}}); !errors.Is(err, errVars) {
			t.Errorf("ten times the bound: %v", err)
		}
	}
	if _, err := CompileExpr(strings.Repeat(" ", 10*maxExprBytes) + "1"); err == nil {
		t.Error("ten times the longest expression was parsed")
	}
	var names []string
	for i := range 10 * maxExprVars {
		names = append(names, fmt.Sprintf("v%d", i))
	}
	if _, err := CompileExpr(strings.Join(names, "+")); err == nil || !strings.Contains(err.Error(), "variables") {
		t.Errorf("ten times as many variables: %v", err)
	}
}

// TestOrdinaryPatternsAndConditionsAreTaken checks that the usual patterns, conditions and
// functions of workflows work.
func TestOrdinaryPatternsAndConditionsAreTaken(t *testing.T) {
	run, _ := hostilePool(t)
	scope := Scopes{Map{"out": strings.Repeat("line 17: done in 3.5s\n", 1000), "v": "release-1.20.3"}, Typed{Runner: run, "n": int64(1) << 60, "f": 1.5, "at": time.Unix(5, 7).UTC(), "odd": map[string]any{"time": "x", "float": "y"}}}
	for source, want := range map[string]string{
		`out matches "line [0-9]+: done"`: "true", `v matches "^release-[0-9]+\\.[0-9]+"`: "true", `len(sprig.regexFindAll("[0-9]+", out, -1)) > 2000`: "true",
		`sprig.regexReplaceAll("[^0-9.]+", v, "")`: "1.20.3", `len(sprig.splitList("\n", out))`: "1001", `sprig.set({"a": 1}, "b", 2).b`: "2",
		`sprig.merge({"a": 1}, {"a": 2, "b": 3}).b`: "3", `let d = {"a": 1}; let e = sprig.set(d, "a", 2); d.a`: "1",
		`sprig.int64(n) + 1`: fmt.Sprint(int64(1)<<60 + 1), `sprig.toString(f)`: "1.5", `at.Unix() + at.Nanosecond()`: "12", `sprig.cat(odd.time, odd["float"])`: "x y",
	} {
		e, err := CompileExpr(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := e.Text(scope); err != nil || got != want {
			t.Errorf("%s: %s, %v", source, got, err)
		}
	}
	for condition, want := range map[string]bool{
		"'release-1.20' =~ '^release-[0-9]+'": true, "abc !~ '^x'": true, "'" + strings.Repeat("text of a step ", 10_000) + "' == 'x'": false,
		"'it\\'s' == 'x' || 1 < 2 && 'a' in ('a', 'b')": true, "'a+b+c' =~ 'a.b' && 'x' == 'x'": true,
	} {
		if got, err := When(condition, run); err != nil || got != want {
			t.Errorf("%s: %v, %v", shortened(condition), got, err)
		}
	}
}

// FuzzExpression checks that no expression or condition makes this process panic or allocate
// without bound.
func FuzzExpression(f *testing.F) {
	run, _ := hostilePool(f)
	for _, seed := range hostileExpressions {
		f.Add(seed, `'a' =~ 'b' && 1 + 2 == 3`)
	}
	for _, seed := range []string{
		`long matches "(a?)+b"`, `map(1..1000, {# * 2})`, `sprig.toJson(sprig.dict("a", list))`, `reduce(list, #acc + #, "")`, `asInt("3") + len(long)`, `jsonpath("{\"a\": [1, 2]}", "$.a[*]")`, `jsonpath("{\"a\": [1, 2]}", "$..a[?(@ > 1), 0:1:2][0]")`,
		`list[2].k in d`, `(long + long + long)[3] == d?.x ?? string(list)`,
	} {
		f.Add(seed, `(`+seed+`)`)
	}
	scope := Scopes{hostileScope, Typed{"list": []any{"a", "b", 1, map[string]any{"k": "v"}}, "d": map[string]any{"x": 1.5}, Clock: time.Unix(0, 0), Runner: run}}
	f.Fuzz(func(t *testing.T, source, condition string) {
		measure(t, source, func() {
			if e, err := CompileExpr(source); err == nil {
				_, _ = e.Text(scope)
			}
			if text, err := Parse("{{=" + source + "}}"); err == nil {
				_, _ = text.Resolve([]Scope{scope})
			}
		})
		measure(t, condition, func() { _, _ = When(condition, run) })
	})
}
