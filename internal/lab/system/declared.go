package system

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/jsonpath"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/systemfile"
	"lockstep.dev/lockstep/internal/localcluster"
)

// declared is a system that a file describes.
type declared struct {
	file *systemfile.File
	// dir is the directory of the file, for relative paths.
	dir       string
	manifests []*unstructured.Unstructured
	kind      schema.GroupVersionKind
	status    map[string]*jsonpath.JSONPath
}

// IsFile reports whether the name of a system is the path of a file.
func IsFile(name string) bool {
	return strings.ContainsRune(name, os.PathSeparator) || filepath.Ext(name) == ".yaml" || filepath.Ext(name) == ".yml"
}

// load reads the file of a system, and the manifests that it names.
func load(path string, parameters map[string]string) (System, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &declared{status: map[string]*jsonpath.JSONPath{}}
	if d.file, err = systemfile.Parse(path, text); err != nil {
		return nil, err
	}
	if err := d.file.Set(parameters); err != nil {
		return nil, err
	}
	if d.dir, err = filepath.Abs(filepath.Dir(path)); err != nil {
		return nil, err
	}
	for _, m := range d.file.Manifests {
		objects, err := readManifests(filepath.Join(d.dir, m))
		if err != nil {
			return nil, fmt.Errorf("%s: manifests: %w", path, err)
		}
		d.manifests = append(d.manifests, objects...)
	}
	s := d.file.Status
	for field, expression := range map[string]string{"running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed,
		"message": s.Message} {
		if expression == "" {
			continue
		}
		p := jsonpath.New(field).AllowMissingKeys(true)
		if err := p.Parse(expression); err != nil {
			return nil, fmt.Errorf("%s: status.%s: %w", path, field, err)
		}
		d.status[field] = p
	}
	sample, err := d.NewJob(Job{Namespace: "n", Name: "j", Pods: 1})
	if err != nil {
		return nil, fmt.Errorf("%s: load.job: %w", path, err)
	}
	d.kind = sample.GetObjectKind().GroupVersionKind()
	return d, nil
}

func (d *declared) Name() string { return d.file.Name }

func (d *declared) Configure(c *localcluster.Config) {
	c.WithScheduler = d.file.ControlPlane.Scheduler
	c.ExtraArgs = map[localcluster.Component][]string{}
	for component, args := range d.file.ControlPlane.Args {
		c.ExtraArgs[localcluster.Component(component)] = args
	}
	c.Install = func(ctx context.Context, cfg *rest.Config) error { return apply(ctx, cfg, d.manifests) }
	for _, p := range d.file.Processes {
		program := localcluster.Program{Name: localcluster.Component(p.Name), Command: slices.Clone(p.Command), Dir: d.dir,
			Ports: p.Ports, ReadyURL: p.Ready.URL, MetricsURL: p.Metrics}
		if strings.ContainsRune(program.Command[0], os.PathSeparator) && !filepath.IsAbs(program.Command[0]) {
			program.Command[0] = filepath.Join(d.dir, program.Command[0])
		}
		for _, name := range slices.Sorted(maps.Keys(p.Env)) {
			program.Env = append(program.Env, name+"="+p.Env[name])
		}
		if p.Ready.Log != "" {
			program.ReadyLog = regexp.MustCompile("(?m)" + p.Ready.Log)
		}
		c.Programs = append(c.Programs, program)
	}
}

func (d *declared) Settings() map[string]string {
	out := map[string]string{}
	maps.Copy(out, d.file.Parameters)
	maps.Copy(out, d.file.Settings)
	return out
}

// ParametersOf returns the names of the parameters of a system that a file describes.
func ParametersOf(s System) []string {
	d, ok := s.(*declared)
	if !ok {
		return nil
	}
	return slices.Sorted(maps.Keys(d.file.Parameters))
}

func (d *declared) Clients() []Client { return d.file.Clients }

func (d *declared) Gangs() bool { return d.file.Load.Gangs }

func (d *declared) Jobs() schema.GroupVersionResource {
	guess, _ := meta.UnsafeGuessKindToResource(d.kind)
	return d.kind.GroupVersion().WithResource(cmp.Or(d.file.Load.Resource, d.defined(), guess.Resource))
}

// defined returns the plural name of the job's kind by its CustomResourceDefinition among the
// manifests; empty if it is not there.
func (d *declared) defined() string {
	text := func(u *unstructured.Unstructured, fields ...string) string {
		s, _, _ := unstructured.NestedString(u.Object, fields...)
		return s
	}
	for _, u := range d.manifests {
		if u.GetKind() == "CustomResourceDefinition" && text(u, "spec", "group") == d.kind.Group && text(u, "spec", "names", "kind") == d.kind.Kind {
			return text(u, "spec", "names", "plural")
		}
	}
	return ""
}

func (d *declared) NewList() runtime.Object {
	list := d.kind
	list.Kind += "List"
	if o, err := scheme.Scheme.New(list); err == nil {
		return o
	}
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(list)
	return u
}

func (d *declared) NewJob(j Job) (drive.Object, error) { return d.render(j, false) }

// render renders a job. Built-in kinds are returned with their types, to be sent as protobuf.
func (d *declared) render(j Job, forFloor bool) (drive.Object, error) {
	job := systemfile.Job{Namespace: j.Namespace, Name: j.Name, Index: j.Index, Pods: j.Pods, Gang: j.Gang,
		Min: max(1, d.Min(j.Pods, j.Gang)), Floor: forFloor, Parameters: d.file.Parameters}
	spec, err := json.Marshal(scenario.PodSpec())
	if err != nil {
		return nil, err
	}
	job.PodSpec = string(spec)
	u, err := d.file.Render(job)
	if err != nil {
		return nil, err
	}
	typed, err := scheme.Scheme.New(u.GroupVersionKind())
	if runtime.IsNotRegisteredError(err) {
		return u, nil
	}
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, typed, true); err != nil {
		return nil, err
	}
	typed.GetObjectKind().SetGroupVersionKind(u.GroupVersionKind())
	o, ok := typed.(drive.Object)
	if !ok {
		return nil, fmt.Errorf("%s has no metadata", u.GetKind())
	}
	return o, nil
}

func (d *declared) NewQueue(string, int) (drive.Object, schema.GroupVersionResource) {
	return nil, schema.GroupVersionResource{}
}

// Min returns pods for a gang, and otherwise 0: nothing is promised.
func (d *declared) Min(pods int, gang bool) int {
	if gang && d.file.Load.Gangs {
		return pods
	}
	return 0
}

func (d *declared) State(o drive.Object) analyse.JobState {
	s := analyse.JobState{Name: o.GetName(), Running: analyse.Unknown, Succeeded: analyse.Unknown, Failed: analyse.Unknown, Explained: true}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return s
	}
	for field, to := range map[string]*int{"running": &s.Running, "succeeded": &s.Succeeded, "failed": &s.Failed} {
		if p := d.status[field]; p != nil {
			*to = 0
			if text := find(p, object); text != "" {
				if n, err := strconv.Atoi(text); err == nil {
					*to = n
				}
			}
		}
	}
	if p := d.status["message"]; p != nil {
		s.Explained = find(p, object) != ""
	}
	return s
}

func find(p *jsonpath.JSONPath, object map[string]any) string {
	var out bytes.Buffer
	if err := p.Execute(&out, object); err != nil {
		return ""
	}
	return out.String()
}

func (d *declared) Identify(pod string) (job string, index int) {
	job, index, _ = d.file.Identify(pod)
	return job, index
}

func (d *declared) OfLoad(pod string) bool {
	_, _, ok := d.file.Identify(pod)
	return ok
}

func (d *declared) Writers() map[string]bool {
	return map[string]bool{observe.System: true, observe.ControllerManager: true, observe.Scheduler: true}
}

func (d *declared) Users() []string {
	return append([]string{localcluster.ProgramsUser}, d.file.Users...)
}

func (d *declared) FloorJob(j Job) (drive.Object, error) { return d.render(j, true) }

// WithStatus returns nil if the job at rest has no status.
func (d *declared) WithStatus(created, atRest drive.Object) drive.Object {
	from, err1 := runtime.DefaultUnstructuredConverter.ToUnstructured(atRest)
	to, err2 := runtime.DefaultUnstructuredConverter.ToUnstructured(created.DeepCopyObject())
	if errors.Join(err1, err2) != nil || from["status"] == nil {
		return nil
	}
	to["status"] = from["status"]
	u := &unstructured.Unstructured{Object: to}
	if _, ok := created.(*unstructured.Unstructured); ok {
		return u
	}
	out := created.DeepCopyObject().(drive.Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(to, out); err != nil {
		return nil
	}
	return out
}

// FloorConfig returns the administrator's configuration: what the system's users may do is not
// known.
func (d *declared) FloorConfig(c *localcluster.Cluster) *rest.Config { return c.RESTConfig() }

func (d *declared) StopForFloor() []localcluster.Component {
	var out []localcluster.Component
	for _, name := range d.file.Floor.Stop {
		out = append(out, localcluster.Component(name))
	}
	return out
}

func (d *declared) Settle() time.Duration { return d.file.Status.SettleTime }

// Installs reports whether the file says how to install the system.
func (d *declared) Installs() bool { return len(d.file.Processes)+len(d.file.Manifests) > 0 }
