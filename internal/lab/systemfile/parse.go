package systemfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	sigsyaml "sigs.k8s.io/yaml"
)

// bytesMax bounds a file.
const bytesMax = 1 << 20

// defaultPods matches JOB-x, where x is any one word.
const defaultPods = `^(?P<job>.+)-[^-]+$`

// Components are the components of a control plane that a file may configure or stop.
var Components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// Parse decodes and checks a file. name is the name of the file in errors.
func Parse(name string, text []byte) (*File, error) {
	if len(text) > bytesMax {
		return nil, fmt.Errorf("%s: is larger than %d bytes", name, bytesMax)
	}
	d := &document{name: name}
	var doc yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	err := decoder.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: is empty", name)
	case err != nil:
		return nil, d.explain(err)
	}
	d.root = doc.Content[0]
	var more yaml.Node
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: want one document", name)
	}
	f := &File{}
	strict := yaml.NewDecoder(strings.NewReader(string(text)))
	strict.KnownFields(true)
	if err := strict.Decode(f); err != nil {
		return nil, d.explain(err)
	}
	if err := f.check(d); err != nil {
		return nil, err
	}
	return f, nil
}

// document is a parsed file, to find the lines of fields.
type document struct {
	name string
	root *yaml.Node
}

// bad returns an error about a field, which is given as its path: names and indexes.
func (d *document) bad(path []any, format string, args ...any) error {
	line, text := d.root.Line, ""
	for n, i := d.root, 0; i < len(path); i++ {
		if n != nil {
			if n = step(n, path[i]); n != nil {
				line = n.Line
			}
		}
		if s, ok := path[i].(string); ok {
			text += "." + s
		} else {
			text += fmt.Sprintf("[%d]", path[i])
		}
	}
	return fmt.Errorf("%s:%d: %s: %w", d.name, line, strings.TrimPrefix(text, "."), fmt.Errorf(format, args...))
}

// step returns the value of a field or an item of a list, with the line of its key.
func step(n *yaml.Node, key any) *yaml.Node {
	if i, ok := key.(int); ok {
		if n.Kind != yaml.SequenceNode || i >= len(n.Content) {
			return nil
		}
		return n.Content[i]
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			at := *n.Content[i+1]
			at.Line = n.Content[i].Line // the value of a block begins on the next line
			return &at
		}
	}
	return nil
}

var (
	decodeError  = regexp.MustCompile(`line (\d+): (.*)`)
	unknownField = regexp.MustCompile(`^field (.+) not found in type .*$`)
)

// explain replaces the words of the YAML library by the file, the line and the field.
func (d *document) explain(err error) error {
	var typed *yaml.TypeError
	text := err.Error()
	if errors.As(err, &typed) {
		text = typed.Errors[0]
	}
	m := decodeError.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%s: %s", d.name, strings.TrimPrefix(text, "yaml: "))
	}
	line, _ := strconv.Atoi(m[1])
	if field := unknownField.FindStringSubmatch(m[2]); field != nil {
		parent := pathAt(d.root, line)
		if i := strings.LastIndexByte(parent, '.'); i >= 0 {
			return fmt.Errorf("%s:%d: %s: unknown field %q", d.name, line, parent[:i], field[1])
		}
		return fmt.Errorf("%s:%d: unknown field %q", d.name, line, field[1])
	}
	if path := pathAt(d.root, line); path != "" {
		return fmt.Errorf("%s:%d: %s: %s", d.name, line, path, m[2])
	}
	return fmt.Errorf("%s:%d: %s", d.name, line, m[2])
}

// pathAt returns the path of the deepest field whose key is on a line.
func pathAt(n *yaml.Node, line int) string {
	if n == nil {
		return ""
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if deeper := pathAt(value, line); deeper != "" {
				if strings.HasPrefix(deeper, "[") {
					return key.Value + deeper
				}
				return key.Value + "." + deeper
			}
			if key.Line == line {
				return key.Value
			}
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if deeper := pathAt(item, line); deeper != "" {
				return fmt.Sprintf("[%d].%s", i, deeper)
			}
		}
	}
	return ""
}

// path makes a path for bad.
func path(parts ...any) []any { return parts }

// check checks a decoded file, and sets defaults.
func (f *File) check(d *document) (err error) {
	if errs := validation.IsDNS1123Label(f.Name); len(errs) > 0 {
		return d.bad(path("name"), "%q: %s", f.Name, errs[0])
	}
	if f.Name == "lockstep" || f.Name == "kubernetes" {
		return d.bad(path("name"), "%s is the name of a built-in system", f.Name)
	}
	for component := range f.ControlPlane.Args {
		if !slices.Contains(Components, component) {
			return d.bad(path("controlPlane", "args", component), "unknown component; there are: %s", strings.Join(Components, ", "))
		}
	}
	for name := range f.Parameters {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return d.bad(path("parameters", name), "%q: %s", name, errs[0])
		}
	}
	for component, args := range f.ControlPlane.Args {
		for i, arg := range args {
			if name := f.unknown(arg); name != "" {
				return d.bad(path("controlPlane", "args", component, i), "unknown variable ${%s}", name)
			}
		}
	}
	if err := f.checkProcesses(d); err != nil {
		return err
	}
	for i, c := range f.Clients {
		if c.Name == "" || c.QPS == "" || c.Burst == "" {
			return d.bad(path("clients", i), "want name, qps and burst")
		}
		if name := cmp.Or(f.unknown(c.QPS), f.unknown(c.Burst)); name != "" {
			return d.bad(path("clients", i), "unknown variable ${%s}", name)
		}
	}
	if err := f.checkPods(d); err != nil {
		return err
	}
	if f.Status.SettleTime < 0 {
		return d.bad(path("status", "settleTime"), "is negative")
	}
	return f.checkLoad(d)
}

func (f *File) checkProcesses(d *document) error {
	names := slices.Clone(Components)
	for i := range f.Processes {
		p := &f.Processes[i]
		at := func(parts ...any) []any { return append(path("processes", i), parts...) }
		if errs := validation.IsDNS1123Label(p.Name); len(errs) > 0 {
			return d.bad(at("name"), "%q: %s", p.Name, errs[0])
		}
		if slices.Contains(names, p.Name) {
			return d.bad(at("name"), "there are two processes named %s", p.Name)
		}
		names = append(names, p.Name)
		if len(p.Command) == 0 {
			return d.bad(at("command"), "is required")
		}
		known := []string{"KUBECONFIG", "PORT"}
		for k, port := range p.Ports {
			if errs := validation.IsDNS1123Label(port); len(errs) > 0 {
				return d.bad(at("ports", k), "%q: %s", port, errs[0])
			}
			known = append(known, "PORT_"+port)
		}
		for _, name := range slices.Sorted(maps.Keys(f.Parameters)) {
			known = append(known, parameter+name)
		}
		check := func(text string, parts ...any) error {
			for _, v := range variable.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(known, v[1]) {
					return d.bad(at(parts...), "unknown variable ${%s}; there are: %s", v[1], strings.Join(known, ", "))
				}
			}
			return nil
		}
		for k, arg := range p.Command {
			if err := check(arg, "command", k); err != nil {
				return err
			}
		}
		for k, value := range p.Env {
			if err := check(value, "env", k); err != nil {
				return err
			}
		}
		if err := check(p.Ready.URL, "ready", "url"); err != nil {
			return err
		}
		if err := check(p.Metrics, "metrics"); err != nil {
			return err
		}
		if _, err := regexp.Compile(p.Ready.Log); err != nil {
			return d.bad(at("ready", "log"), "%w", err)
		}
	}
	for i, name := range f.Floor.Stop {
		if !slices.Contains(names, name) || name == "etcd" || name == "kube-apiserver" {
			return d.bad(path("floor", "stop", i), "%s is no process of the system that can be stopped", name)
		}
	}
	return nil
}

// parameter is the prefix of the variables of parameters.
const parameter = "PARAM_"

// unknown returns the first variable of a text that is no parameter; empty if there is none.
func (f *File) unknown(text string) string {
	for _, v := range variable.FindAllStringSubmatch(text, -1) {
		name, ok := strings.CutPrefix(v[1], parameter)
		if _, known := f.Parameters[name]; !ok || !known {
			return v[1]
		}
	}
	return ""
}

// Set gives parameters other values than the file's, and replaces the variables of all of them.
func (f *File) Set(values map[string]string) error {
	for name := range values {
		if _, ok := f.Parameters[name]; !ok {
			return fmt.Errorf("system %s has no parameter %s; there are: %s", f.Name, name,
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(f.Parameters)), ", "), "none"))
		}
		f.Parameters[name] = values[name]
	}
	expand := func(text *string) {
		*text = variable.ReplaceAllStringFunc(*text, func(v string) string {
			if name, ok := strings.CutPrefix(v[2:len(v)-1], parameter); ok {
				return f.Parameters[name]
			}
			return v
		})
	}
	for _, args := range f.ControlPlane.Args {
		for i := range args {
			expand(&args[i])
		}
	}
	for i := range f.Processes {
		p := &f.Processes[i]
		for k := range p.Command {
			expand(&p.Command[k])
		}
		for name, value := range p.Env {
			expand(&value)
			p.Env[name] = value
		}
	}
	for i := range f.Clients {
		expand(&f.Clients[i].QPS)
		expand(&f.Clients[i].Burst)
	}
	return nil
}

var variable = regexp.MustCompile(`\$\{([^{}]*)\}`)

func (f *File) checkPods(d *document) (err error) {
	if f.Pods.Name == "" {
		f.Pods.Name = defaultPods
	}
	if f.pods, err = regexp.Compile(f.Pods.Name); err != nil {
		return d.bad(path("pods", "name"), "%w", err)
	}
	if f.pods.SubexpIndex("job") < 0 {
		return d.bad(path("pods", "name"), "has no group (?P<job>...)")
	}
	return nil
}

func (f *File) checkLoad(d *document) (err error) {
	if f.Load.Job == "" {
		return d.bad(path("load", "job"), "is required")
	}
	if f.job, err = template.New("load.job").Option("missingkey=error").Parse(f.Load.Job); err != nil {
		return d.bad(path("load", "job"), "%w", err)
	}
	for _, gang := range []bool{true, false} {
		if _, err := f.Render(Job{Namespace: "n", Name: "j", Pods: 2, Min: 1, Gang: gang, PodSpec: "{}"}); err != nil {
			return d.bad(path("load", "job"), "%w", err)
		}
	}
	return nil
}

// Render returns a job of the system.
func (f *File) Render(job Job) (*unstructured.Unstructured, error) {
	var text strings.Builder
	if err := f.job.Execute(&text, job); err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := sigsyaml.UnmarshalStrict([]byte(text.String()), &object); err != nil {
		return nil, fmt.Errorf("the job is no YAML object: %w", err)
	}
	// The numbers of unstructured objects are int64 or float64.
	data, err := sigsyaml.YAMLToJSON([]byte(text.String()))
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("the job is no Kubernetes object: %w", err)
	}
	switch {
	case u.GetAPIVersion() == "":
		return nil, errors.New("the job has no apiVersion")
	case u.GetName() != "" && u.GetName() != job.Name:
		return nil, fmt.Errorf("the job is named %q: want {{.Name}}", u.GetName())
	}
	u.SetName(job.Name)
	u.SetNamespace(job.Namespace)
	return u, nil
}

// Identify returns the job and the index of a pod; ok is false for a pod that is not of the load.
// The index is -1 if the name has none.
func (f *File) Identify(pod string) (job string, index int, ok bool) {
	m := f.pods.FindStringSubmatch(pod)
	if m == nil {
		return "", -1, false
	}
	index = -1
	if i := f.pods.SubexpIndex("index"); i >= 0 {
		if n, err := strconv.Atoi(m[i]); err == nil {
			index = n
		}
	}
	return m[f.pods.SubexpIndex("job")], index, true
}
