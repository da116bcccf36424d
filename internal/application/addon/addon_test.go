package addon_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/application/addon"
	"lockstep.dev/lockstep/internal/application/render"
)

func open(t *testing.T, files map[string]string) *addon.Addon {
	t.Helper()
	in := addon.Files{}
	for name, text := range files {
		if err := in.Add(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	a, err := addon.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const metadata = "name: notes\nversion: 1.2.0\ndescription: Notes of users\n"

const definition = `
note: {type: "component", annotations: {}, attributes: workload: type: "autodetects.core.oam.dev"}
template: {
	output: {apiVersion: "v1", kind: "ConfigMap", metadata: name: context.name}
	parameter: {}
}
`

// rendered has addons and what they are rendered to, as YAML.
var rendered = map[string]struct {
	files map[string]string
	in    addon.Input
	want  string
}{
	"definitions only": {
		map[string]string{"metadata.yaml": metadata, "definitions/note.cue": definition}, addon.Input{Registry: "ours"}, `
application:
  apiVersion: core.oam.dev/v1beta1
  kind: Application
  metadata:
    name: addon-notes
    namespace: vela-system
    annotations: {addon.oam.dev/componentDefinitions: note}
    labels: {addons.oam.dev/name: notes, addons.oam.dev/registry: ours, addons.oam.dev/version: 1.2.0}
  spec: {components: []}
beside:
- apiVersion: core.oam.dev/v1beta1
  kind: ComponentDefinition
  metadata: {annotations: {}, labels: &labels {addons.oam.dev/name: notes, addons.oam.dev/version: 1.2.0}, name: note, namespace: vela-system}
  spec:
    schematic: {cue: {template: "output: {apiVersion: \"v1\", kind: \"ConfigMap\", metadata: name: context.name}\nparameter: {}\n"}}
    workload: {type: autodetects.core.oam.dev}
`},
	"resources, namespaces and clusters": {
		map[string]string{
			"metadata.yaml":          metadata + "needNamespace: [notes, vela-system]\ndeployTo: {runtimeCluster: true}\n",
			"template.yaml":          "apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: other, namespace: default}\nspec: {components: [{name: first, type: worker}]}\n",
			"parameter.cue":          "parameter: {\n\tsize: *1 | int\n}\n",
			"resources/a.yaml":       "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {n: \"1\"}}\n",
			"resources/more/web.cue": "output: {type: \"webservice\", properties: {image: \"web:\\(context.metadata.version)\", size: parameter.size}}\n",
			"resources/named.cue":    "output: {name: \"given\", type: \"worker\"}\n",
			"resources/helper.cue":   "helper: 1\n",
		}, addon.Input{Parameters: map[string]any{"size": int64(3), "clusters": []any{"east"}, "sise": "x"}}, `
application:
  apiVersion: core.oam.dev/v1beta1
  kind: Application
  metadata:
    name: addon-notes
    namespace: vela-system
    labels: {addons.oam.dev/name: notes, addons.oam.dev/version: 1.2.0}
  spec:
    components:
    - {name: first, type: worker}
    - {name: notes-namespace, type: raw, properties: {apiVersion: v1, kind: Namespace, metadata: {name: notes}}}
    - name: notes-resources
      type: k8s-objects
      properties:
        objects:
        - {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
        - {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {n: "1"}}
    - {name: web, type: webservice, properties: {image: "web:1.2.0", size: 3}}
    - {name: given, type: worker}
    policies:
    - {name: deploy-addon-to-specified-clusters, type: topology, properties: {clusters: [east, local]}}
warnings:
- "the template's name other has no effect: the application is addon-notes"
- "the template's namespace default has no effect: the application is in vela-system"
- "the parameter sise has no effect: the addon does not declare it"
`},
	"a template of CUE, with objects beside the application": {
		map[string]string{
			"metadata.yaml":          metadata,
			"template.cue":           "package main\n\noutput: spec: {\n\tcomponents: [web, if parameter.second {second}]\n}\noutputs: config: {apiVersion: \"v1\", kind: \"ConfigMap\", metadata: name: \"notes\"}\n",
			"resources/web.cue":      "package main\n\nweb: {name: \"web\", type: \"worker\", properties: image: parameter.image}\nsecond: {name: \"second\", type: \"worker\"}\n",
			"parameter.cue":          "parameter: {\n\timage: string\n\tsecond: *false | bool\n}\n",
			"views/look.cue":         "parameter: name: string\nstatus: {}\n",
			"schemas/form.yaml":      "- {jsonKey: image}\n",
			"definitions/a.yaml":     "{apiVersion: core.oam.dev/v1beta1, kind: TraitDefinition, metadata: {name: bound, namespace: elsewhere, annotations: {addon.oam.dev/bind-component: second}}}",
			"NOTES.cue":              "package main\nnotes: \"image \\(parameter.image) of \\(context.metadata.name)\"\n",
			"config-templates/a.cue": configTemplate,
		}, addon.Input{Parameters: map[string]any{"image": "web:1"}}, `
application:
  apiVersion: core.oam.dev/v1beta1
  kind: Application
  metadata:
    name: addon-notes
    namespace: vela-system
    labels: {addons.oam.dev/name: notes, addons.oam.dev/version: 1.2.0}
  spec:
    components:
    - {name: web, type: worker, properties: {image: "web:1"}}
beside:
- apiVersion: v1
  kind: ConfigMap
  metadata: {labels: {addons.oam.dev/auxiliary-name: config, addons.oam.dev/name: notes, addons.oam.dev/version: 1.2.0}, name: notes, namespace: vela-system}
- apiVersion: v1
  kind: ConfigMap
  metadata:
    annotations: {config.oam.dev/alias: A registry, config.oam.dev/description: "", config.oam.dev/sensitive: "true"}
    labels: {addons.oam.dev/name: notes, addons.oam.dev/version: 1.2.0, config.oam.dev/catalog: velacore-config, config.oam.dev/scope: project}
    name: config-template-registry
    namespace: vela-system
  data: {template: CONFIGTEMPLATE}
- apiVersion: v1
  kind: ConfigMap
  metadata: {labels: &labels {addons.oam.dev/name: notes, addons.oam.dev/version: 1.2.0}, name: look, namespace: vela-system}
  data: {template: "parameter: name: string\nstatus: {}\n"}
- apiVersion: v1
  kind: ConfigMap
  metadata: {labels: *labels, name: form, namespace: vela-system}
  data: {ui-schema: '[{"jsonKey":"image"}]'}
notes: image web:1 of notes
`},
}

// configTemplate is a template of configs. Its output is not complete without properties.
const configTemplate = `import "encoding/json"

metadata: {name: "registry", alias: "A registry", scope: "project", sensitive: true}
template: {
	output: {apiVersion: "v1", kind: "Secret", stringData: auth: json.Marshal({name: context.name, user: parameter.user})}
	parameter: user: string
}
`

func TestAddonsAreRendered(t *testing.T) {
	for what, c := range rendered {
		t.Run(what, func(t *testing.T) {
			r, err := open(t, c.files).Render(render.InProcess(), c.in)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]any{"application": r.Application.Object}
			for _, u := range r.Beside {
				list, _ := got["beside"].([]any)
				got["beside"] = append(list, u.Object)
			}
			if r.Notes != "" {
				got["notes"] = r.Notes
			}
			if r.Warnings != nil {
				got["warnings"] = r.Warnings
			}
			data, err := yaml.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(asYAML(t, strings.ReplaceAll(c.want, "CONFIGTEMPLATE", strconv.Quote(configTemplate))), asYAML(t, string(data))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func asYAML(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// wrong has addons that cannot be read or rendered.
var wrong = map[string]struct {
	files map[string]string
	want  string
}{
	"no metadata":             {map[string]string{"template.yaml": "{}"}, "it has no metadata.yaml"},
	"a name that is none":     {map[string]string{"metadata.yaml": "name: A_b\nversion: 1.0.0\n"}, `the name "A_b"`},
	"no version":              {map[string]string{"metadata.yaml": "name: a\n"}, `"" is no version`},
	"two templates":           {map[string]string{"metadata.yaml": metadata, "template.yaml": "{}", "template.cue": "output: {}"}, "template.cue and template.yaml"},
	"definitions in Go":       {map[string]string{"metadata.yaml": metadata, "godef/a.go": ""}, "the folder godef/ is not supported"},
	"another kind":            {map[string]string{"metadata.yaml": metadata, "template.yaml": "kind: Deployment"}, "the template is a Deployment"},
	"no output":               {map[string]string{"metadata.yaml": metadata, "template.cue": "x: 1"}, "template.cue: it has no output"},
	"a parameter is missing":  {map[string]string{"metadata.yaml": metadata, "template.cue": "output: spec: components: [{name: parameter.name}]", "parameter.cue": "parameter: name: string"}, "parameter.name"},
	"CUE that is wrong":       {map[string]string{"metadata.yaml": metadata, "resources/a.cue": "output: {"}, "resources/a.cue"},
	"YAML that is wrong":      {map[string]string{"metadata.yaml": metadata, "resources/a.yaml": "a: [b"}, "resources/a.yaml"},
	"a definition, no name":   {map[string]string{"metadata.yaml": metadata, "definitions/a.yaml": "{apiVersion: v1, kind: ConfigMap}"}, "an object has an apiVersion, a kind and a name"},
	"an object elsewhere":     {map[string]string{"metadata.yaml": metadata, "template.cue": "output: {}\noutputs: a: {apiVersion: \"v1\", kind: \"ConfigMap\", metadata: {name: \"a\", namespace: \"b\"}}"}, "is in namespace b"},
	"a package that is none":  {map[string]string{"metadata.yaml": metadata, "template.cue": "import \"vela/none\"\noutput: none.#A"}, "package vela/none is not supported"},
	"two objects in template": {map[string]string{"metadata.yaml": metadata, "template.yaml": "{a: 1}\n---\n{b: 1}"}, "it has 2 objects"},
}

func TestAddonsThatAreWrong(t *testing.T) {
	for what, c := range wrong {
		t.Run(what, func(t *testing.T) {
			files := addon.Files{}
			for name, text := range c.files {
				files[name] = []byte(text)
			}
			a, err := addon.Open(files)
			if err == nil {
				_, err = a.Render(render.InProcess(), addon.Input{})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

type entry struct {
	name, text string
	kind       byte
}

func packed(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: 0o600}
		if e.kind == tar.TypeReg {
			h.Size = int64(len(e.text))
		} else {
			h.Linkname = e.text
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestArchivesAreUnpacked(t *testing.T) {
	files, err := addon.Unpack(packed(t, entry{"notes/", "", tar.TypeDir}, entry{"notes/metadata.yaml", metadata, tar.TypeReg},
		entry{"./notes/resources/a.yaml", "a: 1", tar.TypeReg}))
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"metadata.yaml", "resources/a.yaml"}) {
		t.Errorf("the files are %v", names)
	}
	many := make([]entry, addon.FilesMax+1)
	for i := range many {
		many[i] = entry{"notes/" + strings.Repeat("x", i%200) + string(rune('a'+i/200)), "", tar.TypeReg}
	}
	large := strings.Repeat("x", 1<<20)
	var heavy []entry
	for i := range 17 {
		heavy = append(heavy, entry{"notes/" + string(rune('a'+i)), large, tar.TypeReg})
	}
	for what, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"a path upwards":     {packed(t, entry{"notes/../../etc/passwd", "x", tar.TypeReg}), "not inside the addon"},
		"an absolute path":   {packed(t, entry{"/etc/passwd", "x", tar.TypeReg}, entry{"etc/x", "x", tar.TypeReg}), "outside of its folder"},
		"a root in a folder": {packed(t, entry{"notes//etc/passwd", "x", tar.TypeReg}), "not inside the addon"},
		"two folders":        {packed(t, entry{"notes/a", "x", tar.TypeReg}, entry{"other/a", "x", tar.TypeReg}), "outside of its folder"},
		"no folder":          {packed(t, entry{"a", "x", tar.TypeReg}), "outside of its folder"},
		"a link":             {packed(t, entry{"notes/a", "/etc/passwd", tar.TypeSymlink}), "neither a file nor a folder"},
		"a hard link":        {packed(t, entry{"notes/a", "b", tar.TypeLink}), "neither a file nor a folder"},
		"many files":         {packed(t, many...), "more than 2000 files"},
		"many bytes":         {packed(t, heavy...), "more than 16777216 bytes"},
		"no archive":         {[]byte("text"), "not a packed addon"},
		"half an archive":    {packed(t, entry{"notes/a", large, tar.TypeReg})[:400], "not a packed addon"},
	} {
		t.Run(what, func(t *testing.T) {
			if _, err := addon.Unpack(c.archive); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

// TestNoFileIsOutside checks that no path that is added leads out of a folder when it is joined to
// it.
func TestNoFileIsOutside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"..", ".", "", "a", "b", "..a", `\`, "/"}), 1, 6).Draw(t, "parts"), "/")
		files := addon.Files{}
		if files.Add(name, nil) != nil {
			return
		}
		for part := range strings.SplitSeq(name, "/") {
			if part == ".." || part == "." || part == "" {
				t.Fatalf("%q was added", name)
			}
		}
	})
}
