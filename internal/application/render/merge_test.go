package render_test

import (
	"encoding/json"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestListsOfPatches checks how each directive merges lists.
func TestListsOfPatches(t *testing.T) {
	for name, c := range map[string]struct{ patch, want string }{
		"items of the same key are merged, others added": {`
// +patchKey=name
containers: [{name: "web", tty: true}, {name: "log", image: "log"}]`,
			`{"containers":[{"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"image":"web","name":"web","tty":true},{"image":"side","name":"side"},{"image":"log","name":"log"}]}`},
		"items without the key are merged by their place": {`
// +patchKey=name
containers: [{tty: true}]`,
			`{"containers":[{"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"image":"web","name":"web","tty":true},{"image":"side","name":"side"}]}`},
		"retainKeys replaces the items of the same key, and no other": {`
// +patchKey=name
containers: [{
	name: "web"
	// +patchKey=name
	// +patchStrategy=retainKeys
	env: [{name: "B", valueFrom: fieldRef: fieldPath: "x"}, {name: "C", value: "3"}]
}]`,
			`{"containers":[{"env":[{"name":"A","value":"1"},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"x"}}},{"name":"C","value":"3"}],"image":"web","name":"web"},{"image":"side","name":"side"}]}`},
		"replace replaces the list, whatever its key": {`
// +patchKey=name
// +patchStrategy=replace
containers: [{name: "web"}]`, `{"containers":[{"name":"web"}]}`},
		"a list that was not there is as the patch has it": {`
// +patchKey=name
volumes: [{name: "a", path: "/a"}, {name: "a", path: "/b"}]`,
			`"volumes":[{"name":"a","path":"/a"},{"name":"a","path":"/b"}]}`},
		"items of a patch are not merged with each other": {`
// +patchKey=name
containers: [{name: "log", image: "a"}, {name: "log", image: "b"}]`,
			`{"image":"side","name":"side"},{"image":"a","name":"log"},{"image":"b","name":"log"}]}`},
		"the same item twice is one": {`
// +patchKey=name
containers: [{name: "log", image: "a"}, {name: "log", image: "a"}]`,
			`{"image":"side","name":"side"},{"image":"a","name":"log"}]}`},
		"a key is for the lists inside of its field too": {`
// +patchKey=name
containers: [{name: "web", env: [{name: "C", value: "3"}], args: ["a"]}]`,
			`{"containers":[{"args":["a"],"env":[{"name":"A","value":"1"},{"name":"B","value":"2"},{"name":"C","value":"3"}],"image":"web","name":"web"},{"image":"side","name":"side"}]}`},
		"unless one has its own": {`
// +patchKey=image
containers: [{
	image: "web"
	// +patchKey=name
	env: [{name: "B", value: "2", image: "x"}]
}]`,
			`{"containers":[{"env":[{"name":"A","value":"1"},{"image":"x","name":"B","value":"2"}],"image":"web","name":"web"},{"image":"side","name":"side"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			for where, template := range map[string]string{
				"in place": "patch: spec: {\n" + c.patch + "\n}\nparameter: {}",
				"above":    "patch: {\n" + strings.Replace(c.patch, "\ncontainers:", "\nspec: containers:", 1) + "\n}\nparameter: {}",
			} {
				if where == "above" && !strings.HasPrefix(name, "items") {
					continue // a strategy applies to its own field only
				}
				under, err := render.Compile(&render.Definition{Kind: render.Component, Name: "c", Template: `
output: {apiVersion: "v1", kind: "Y", spec: containers: [
	{name: "web", image: "web", env: [{name: "A", value: "1"}, {name: "B", value: "2"}]},
	{name: "side", image: "side"},
]}`}, render.InProcess())
				if err != nil {
					t.Fatal(err)
				}
				tmpl, err := render.Compile(&render.Definition{Kind: render.Trait, Name: "d", Template: template}, render.InProcess())
				if err != nil {
					t.Fatal(err)
				}
				got, err := render.Render(&render.Request{
					Context:   render.Context{Name: "web", Namespace: "prod", AppName: "shop"},
					Component: render.Use{Template: under},
					Traits:    []render.Use{{Template: tmpl}},
				})
				if err != nil {
					t.Fatalf("%s: %v", where, err)
				}
				if data, err := json.Marshal(got); err != nil || !strings.Contains(string(data), c.want) {
					t.Errorf("%s: %s lacks %s (%v)", where, data, c.want, err)
				}
			}
		})
	}
}
