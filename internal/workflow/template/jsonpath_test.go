package template

import (
	"encoding/json"
	"strings"
	"testing"
)

const pathData = `{
	"staff": [{"name": "Ada", "age": 36, "team": {"id": 1}}, {"name": "Bob", "age": 43, "left": true}, {"name": "Cy", "age": 44, "tags": ["x", "y"]}],
	"by-name": {"z": {"n": 1}, "a": {"n": 2}, "m": {"k": 3}},
	"0": "zero", "odd.name": [[1, 2], [3], []], "none": null, "limit": 40, "big": 12345678
}`

// TestJSONPath checks what paths find: first those that have always been understood, then slices,
// unions and filters.
func TestJSONPath(t *testing.T) {
	for path, want := range map[string]string{
		"$.staff[1].name":                      `"Bob"`,
		"$['staff'][-1]['name']":               `"Cy"`,
		`$["odd.name"][0][1]`:                  `2`,
		"$.by-name.a.n":                        `2`,
		"$.staff.0.age":                        `36`,
		"$[0]":                                 `"zero"`,
		"$.none":                               `null`,
		"$.staff[*].name":                      `["Ada","Bob","Cy"]`,
		"$.by-name.*":                          `[{"n":2},{"k":3},{"n":1}]`,
		"$.by-name.*.n":                        `[2,1]`,
		"$.odd":                                "finds nothing",
		"$.staff[7]":                           "finds nothing",
		"$['odd.name'][*][*]":                  `[1,2,3]`,
		"$['odd.name'].*[0]":                   `[1,3]`,
		"$..n":                                 `[2,1]`,
		"$.staff..id":                          `[1]`,
		"$.nobody[*]":                          `[]`,
		"$.limit[*]":                           `[]`,
		"staff":                                "does not start with $",
		"$staff":                               "is not understood",
		"$.":                                   "is not understood",
		"$..":                                  "is not understood",
		"$.['limit']":                          `40`,
		"$..['n']":                             `[2,1]`,
		"$..[0].id":                            `[]`,
		"$.staff[0:2].name":                    `["Ada","Bob"]`,
		"$.staff[-1:].name":                    `["Cy"]`,
		"$.staff[::2].age":                     `[36,44]`,
		"$.staff[::-1].age":                    `[44,43,36]`,
		"$.staff[7:9]":                         `[]`,
		"$.staff[0:3:0]":                       `[]`,
		"$.staff[0,2].name":                    `["Ada","Cy"]`,
		"$.staff[0,0].name":                    `["Ada","Ada"]`,
		"$.staff[1]['name','age']":             `[43,"Bob"]`,
		"$.staff[1]['name','nothing']":         `["Bob"]`,
		`$.staff[?(@.name=="Bob")].age`:        `[43]`,
		"$.staff[?(@.name == 'Bob')][0].age":   `43`,
		"$.staff[?(@.age>42 && @.age<44)].age": `[43]`,
		"$.staff[?@.age > 43 || !@.team].name": `["Bob","Cy"]`,
		"$.staff[?(@.left)].name":              `["Bob"]`,
		"$.staff[?(@.left == true)].name":      `["Bob"]`,
		"$.staff[?(@.age < $.limit)].name":     `["Ada"]`,
		"$.staff[?(@.team.id == 1)].name":      `["Ada"]`,
		"$.staff[?(@.tags[0] == 'x')].name":    `["Cy"]`,
		"$.staff[?(length(@.name) == 2)].name": `["Cy"]`,
		"$.staff[?(search(@.name, '^[AB]'))].name": `["Ada","Bob"]`,
		"$.by-name[?(@.n)].n":                      `[2,1]`,
		"$.by-name[?(@.n > 0)][1].n":               `1`,
		"$.staff[?(@.name == 'Eve')]":              `[]`,
		"$.staff[?(@.name == 'Eve')][0]":           "finds nothing",
		"$.staff[?(@['name'] == ']')]":             `[]`,
		"$..[?(@.id)].id":                          `[1]`,
		"$['odd.name'][0:2][0]":                    `[1,2]`,
		"$['odd.name'][*][0:1][0]":                 `[1,3]`,
		"$.staff[(@.length-1)]":                    "jsonpath: ",
		"$.staff[?(@.age * 2 > 80)]":               "jsonpath: ",
		"$.staff[?(@.age > )]":                     "jsonpath: ",
		"$.staff[?(@.age > 1)":                     "is not understood",
		"$.staff[]":                                "jsonpath: ",
		"$" + strings.Repeat("[0]", 257):           "more than 256 steps",
	} {
		value, err := jsonPath([]any{pathData, path})
		got, _ := json.Marshal(value)
		if err != nil {
			if strings.HasPrefix(want, "[") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %s", path, err, want)
			}
			continue
		}
		if string(got) != want {
			t.Errorf("%s: %s; want %s", path, got, want)
		}
	}
}

// TestJSONPathIsDeterministic checks that values of maps come in one order.
func TestJSONPathIsDeterministic(t *testing.T) {
	data := `{"e": {"n": 5}, "d": {"n": 4}, "c": {"n": 3}, "b": {"n": 2}, "a": {"n": 1}}`
	for range 50 {
		for _, path := range []string{"$.*.n", "$..n", "$[*].n", "$[?(@.n > 0)].n", "$['e','d','c','b','a'].n"} {
			value, err := jsonPath([]any{data, path})
			if got, _ := json.Marshal(value); err != nil || string(got) != "[1,2,3,4,5]" {
				t.Fatalf("%s: %s, %v", path, got, err)
			}
		}
	}
}
