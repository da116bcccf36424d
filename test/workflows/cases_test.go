package workflows

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

var rewrite = flag.Bool("rewrite", false, "write the tables that the engine gives as what they should be")

// file is one file of cases.
type file struct {
	path   string
	common string // templates that all cases share
	cases  []*testCase
}

// testCase is one manifest with its expected result.
type testCase struct {
	name, about string
	manifest    string   // as written in the file
	actions     []string // actions of users
	want        string

	workflow   *wf.Workflow
	libraries  map[string]*wf.WorkflowSpec // by namespaced/NAME or cluster/NAME
	configMaps map[string]*corev1.ConfigMap
	// objects are the workflow and the objects of libraries as the manifest has them: the types of
	// the API would drop what they do not know and write every value in one form.
	objects []map[string]any
}

func load(t *testing.T) []*file {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	seen := map[string]bool{}
	var files []*file
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := &file{path: path}
		parts := strings.Split("\n"+strings.TrimSpace(string(content)), "\n=== ")
		f.common = strings.TrimSpace(parts[0])
		for _, part := range parts[1:] {
			head, body, _ := strings.Cut(part, "\n")
			c := &testCase{}
			c.name, c.about, _ = strings.Cut(head, ": ")
			if seen[c.name] || c.about == "" {
				t.Fatalf("%s: case %q: no name, or one that is taken", path, head)
			}
			seen[c.name] = true
			body, c.want, _ = strings.Cut(body, "\n----")
			c.want = strings.TrimSpace(c.want)
			var lines []string
			for line := range strings.SplitSeq(body, "\n") {
				if action, found := strings.CutPrefix(line, "! "); found {
					c.actions = append(c.actions, action)
				} else {
					lines = append(lines, line)
				}
			}
			c.manifest = strings.TrimSpace(strings.Join(lines, "\n"))
			if err := c.parse(f.common); err != nil {
				t.Fatalf("%s: case %s: %v", path, c.name, err)
			}
			f.cases = append(f.cases, c)
		}
		files = append(files, f)
	}
	return files
}

func (c *testCase) parse(common string) error {
	c.libraries, c.configMaps = map[string]*wf.WorkflowSpec{}, map[string]*corev1.ConfigMap{}
	for i, doc := range strings.Split(c.manifest, "\n---\n") {
		doc = strings.ReplaceAll(doc, "NAME", c.name)
		var object map[string]any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			return err
		}
		if i == 0 {
			if err := c.parseWorkflow(object, common); err != nil {
				return err
			}
			continue
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return err
		}
		switch kind.Kind {
		case "WorkflowTemplate", "ClusterWorkflowTemplate":
			var one wf.WorkflowTemplate
			if err := yaml.UnmarshalStrict([]byte(doc), &one); err != nil {
				return err
			}
			scope := "namespaced/"
			if kind.Kind != "WorkflowTemplate" {
				scope = "cluster/"
			}
			c.libraries[scope+one.Name] = &one.Spec
			object["apiVersion"] = wf.GroupVersion.String()
			c.objects = append(c.objects, object)
		case "ConfigMap":
			var one corev1.ConfigMap
			if err := yaml.UnmarshalStrict([]byte(doc), &one); err != nil {
				return err
			}
			c.configMaps[one.Name] = &one
		default:
			return fmt.Errorf("kind %q", kind.Kind)
		}
	}
	return nil
}

// parseWorkflow takes a workflow, or only its spec.
func (c *testCase) parseWorkflow(object map[string]any, common string) error {
	if object["spec"] == nil {
		object = map[string]any{"spec": object}
	}
	object["apiVersion"], object["kind"] = wf.GroupVersion.String(), "Workflow"
	if object["metadata"] == nil {
		object["metadata"] = map[string]any{}
	}
	object["metadata"].(map[string]any)["name"] = c.name
	var shared []any
	if err := yaml.UnmarshalStrict([]byte(common), &shared); err != nil {
		return fmt.Errorf("common templates: %w", err)
	}
	if spec := object["spec"].(map[string]any); spec["workflowTemplateRef"] == nil {
		own, _ := spec["templates"].([]any)
		spec["templates"] = append(own, shared...)
	}
	c.objects = append(c.objects, object)
	text, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	c.workflow = &wf.Workflow{}
	return yaml.UnmarshalStrict(text, c.workflow)
}

// text returns the file's content with the present tables.
func (f *file) text() string {
	var b strings.Builder
	b.WriteString(f.common + "\n")
	for _, c := range f.cases {
		fmt.Fprintf(&b, "\n=== %s: %s\n%s\n", c.name, c.about, c.manifest)
		for _, a := range c.actions {
			fmt.Fprintf(&b, "! %s\n", a)
		}
		fmt.Fprintf(&b, "----\n%s\n", c.want)
	}
	return b.String()
}

// table prints a workflow's nodes in the order of their names.
func table(w *wf.Workflow) string {
	var b strings.Builder
	fmt.Fprintf(&b, "workflow %s", w.Status.Phase)
	b.WriteString(values(" ->", w.Status.Outputs))
	if w.Status.Message != "" {
		fmt.Fprintf(&b, ": %s", w.Status.Message)
	}
	nodes := slices.Collect(maps.Values(w.Status.Nodes))
	slices.SortFunc(nodes, func(a, b wf.NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		name := strings.TrimPrefix(n.Name, w.Name)
		if name == "" {
			name = "W"
		}
		template := n.TemplateName
		if n.TemplateRef != nil {
			template = n.TemplateRef.Name + "/" + n.TemplateRef.Template
		}
		if template == "" {
			template = "-"
		}
		fmt.Fprintf(&b, "\n%s %s %s %s", name, n.Type, n.Phase, template)
		if n.Inputs != nil && len(n.Inputs.Parameters) > 0 {
			var in []string
			for _, p := range n.Inputs.Parameters {
				in = append(in, p.Name+"="+string(*p.Value))
			}
			fmt.Fprintf(&b, " (%s)", strings.Join(in, " "))
		}
		b.WriteString(values(" ->", n.Outputs))
		if m := n.MemoizationStatus; m != nil && m.Hit {
			b.WriteString(" hit")
		}
		if n.Message != "" {
			fmt.Fprintf(&b, ": %s", n.Message)
		}
	}
	return strings.ReplaceAll(b.String(), w.Name, "W")
}

func values(arrow string, o *wf.Outputs) string {
	if o == nil {
		return ""
	}
	var out []string
	for _, p := range o.Parameters {
		if p.Value != nil {
			out = append(out, p.Name+"="+string(*p.Value))
		}
	}
	for _, a := range o.Artifacts {
		out = append(out, a.Name)
	}
	if o.Result != nil {
		out = append(out, "result="+*o.Result)
	}
	if len(out) == 0 {
		return ""
	}
	return arrow + " " + strings.Join(out, " ")
}
