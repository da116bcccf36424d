package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// maxName bounds the names of templates, steps and tasks.
const maxName = 128

// nameMax bounds the names of workflows and templates, which are labels of pods and workflows.
const nameMax = 63

// validName returns an error if the name of an object is too long.
func validName(name string, most int) error {
	if len(name) > most {
		return fmt.Errorf("metadata.name: is longer than %d", most)
	}
	return nil
}

// aName reports whether a name consists of letters, digits and the other given characters.
func aName(name, others string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

// nameOfCall checks the name of a template, step or task. Variables in it may have any value.
func (c *checker) nameOfCall(p place, name string) {
	name = withoutTags.ReplaceAllString(name, "x")
	if !aName(name, "-") || name[0] == '-' || len(name) > maxName {
		c.add(p.at("name"), "must not be empty, nor have other characters than letters, digits and '-', nor begin with '-', nor be longer than %d", maxName)
	}
}

// nameOfValue checks the name of a parameter or artifact.
func (c *checker) nameOfValue(p place, name string) {
	if name != "" && !aName(name, "-_") {
		c.add(p, "'%s' has other characters than letters, digits, '-' and '_'", shorten(name))
	}
}

// globalName checks the name that an output has for the whole workflow.
func (c *checker) globalName(p place, name string) {
	if !strings.Contains(name, "{{") {
		c.nameOfValue(p.at("globalName"), name)
	}
}

// shape checks what depends on the kind of a template: which fields it must have, and which it
// cannot have.
func (c *checker) shape(t *wf.Template, p place) {
	calls := t.Steps != nil || t.DAG != nil
	seconds := t.ActiveDeadlineSeconds
	switch {
	case calls && seconds != nil:
		c.add(p.at("activeDeadlineSeconds"), "has no effect on steps and dag; the templates that they call can have one")
	case seconds != nil && !strings.Contains(seconds.StrVal, "{{"):
		if n, err := strconv.Atoi(seconds.String()); err != nil || n < 0 {
			c.add(p.at("activeDeadlineSeconds"), "'%s' is not a number of seconds", shorten(seconds.String()))
		}
	}
	if t.Parallelism != nil && !calls {
		c.add(p.at("parallelism"), "has no effect on templates other than steps and dag")
	}
	image := func(at, image string) {
		if image == "" && !c.partial {
			c.add(p.at(at+".image"), "is required")
		}
	}
	switch {
	case t.Container != nil:
		image("container", t.Container.Image)
		c.mounts(t, p.at("container"), t.Container.VolumeMounts)
	case t.Script != nil:
		image("script", t.Script.Image)
		c.mounts(t, p.at("script"), t.Script.VolumeMounts)
	case t.DAG != nil && len(t.DAG.Tasks) == 0:
		c.add(p.at("dag.tasks"), "is required")
	case t.Resource != nil:
		c.resource(t, p)
	}
	for i, artifacts := range [][]wf.Artifact{t.Inputs.Artifacts, t.Outputs.Artifacts} {
		list := []string{"inputs", "outputs"}[i]
		for i := range artifacts {
			a := &artifacts[i]
			at := p.at(list).named("artifacts", i, a.Name)
			files := t.Container != nil || t.Script != nil || t.ContainerSet != nil || t.Resource != nil && list == "inputs"
			switch {
			case calls && a.Path != "":
				c.add(at.at("path"), "has no effect on steps and dag: their artifacts are in no container")
			case files && a.Path == "":
				c.add(at.at("path"), "is required")
			}
			if list == "inputs" && a.From != "" {
				c.add(at.at("from"), "belongs to the arguments of the call")
			}
			if list == "inputs" && a.FromExpression != "" {
				c.add(at.at("fromExpression"), "belongs to the arguments of the call")
			}
		}
	}
}

// mounts checks that a container has one thing at a path.
func (c *checker) mounts(t *wf.Template, p place, mounts []corev1.VolumeMount) {
	at := map[string]string{}
	for i, m := range mounts {
		if other, twice := at[m.MountPath]; twice {
			c.add(p.index("volumeMounts", i).at("mountPath"), "%s is also that of %s", m.MountPath, other)
		}
		at[m.MountPath] = m.Name
	}
	for i := range t.Inputs.Artifacts {
		a := &t.Inputs.Artifacts[i]
		if other, twice := at[a.Path]; twice {
			c.add(p.named("artifacts", i, a.Name), "%s is also the path of the volume %s", a.Path, other)
		}
	}
}

// resource checks where the manifest of a resource template comes from.
func (c *checker) resource(t *wf.Template, p place) {
	r := t.Resource
	at := p.at("resource")
	switch {
	case r.Manifest != "" && r.ManifestFrom != nil:
		c.add(at, "has both manifest and manifestFrom")
	case r.Manifest == "" && r.ManifestFrom == nil && len(r.Flags) == 0 && !c.partial:
		c.add(at, "must have manifest or manifestFrom, or flags that name the object")
	case r.ManifestFrom != nil && r.ManifestFrom.Artifact != nil:
		name := r.ManifestFrom.Artifact.Name
		if !slices.ContainsFunc(t.Inputs.Artifacts, func(a wf.Artifact) bool { return a.Name == name }) {
			c.add(at.at("manifestFrom.artifact.name"), "there is no input artifact '%s'", shorten(name))
		}
	}
}

// manifests checks that the manifests of resource templates are YAML. Only lint does: the manager
// leaves it to the pod that acts on them.
func (c *checker) manifests(spec *wf.WorkflowSpec) {
	for i := range spec.Templates {
		r := spec.Templates[i].Resource
		if r == nil {
			continue
		}
		for text := range strings.SplitSeq(withoutTags.ReplaceAllString(r.Manifest, "x"), "\n---") {
			var object any
			if err := yaml.Unmarshal([]byte(text), &object); err != nil {
				c.add(place{}.named("templates", i, spec.Templates[i].Name).at("resource.manifest"), "%s", err)
			}
		}
	}
}

// source checks that a template of this kind can have an output parameter from there.
func (c *checker) source(t *wf.Template, o *wf.Parameter, p place) {
	v := o.ValueFrom
	from := count(v.Path != "", v.JSONPath != "", v.JQFilter != "", v.Parameter != "", v.Expression != "", v.Supplied != nil)
	at := p.at("valueFrom")
	switch {
	case o.Value != nil:
		c.add(p, "has both value and valueFrom")
	case v.Event != "": // is refused already
	case from != 1:
		c.add(at, "must have exactly one of path, jsonPath, jqFilter, parameter, expression, supplied")
	case (t.Container != nil || t.Script != nil || t.ContainerSet != nil) && v.Path == "":
		c.add(at, "of containers must have path")
	case t.Resource != nil && v.JSONPath == "" && v.JQFilter == "":
		c.add(at, "of resources must have jsonPath or jqFilter")
	case (t.Steps != nil || t.DAG != nil) && v.Parameter == "" && v.Expression == "":
		c.add(at, "of steps and dags must have parameter or expression")
	}
}

// ofPods returns the fields of a template that are about its pod. Templates without one do not act on
// them.
func ofPods(t *wf.Template) (names []string) {
	for name, set := range map[string]bool{
		"daemon": t.Daemon != nil && *t.Daemon, "nodeSelector": t.NodeSelector != nil, "affinity": t.Affinity != nil,
		"tolerations": t.Tolerations != nil, "schedulerName": t.SchedulerName != "", "priorityClassName": t.PriorityClassName != "",
		"serviceAccountName": t.ServiceAccountName != "", "automountServiceAccountToken": t.AutomountServiceAccountToken != nil,
		"hostAliases": t.HostAliases != nil, "securityContext": t.SecurityContext != nil, "podSpecPatch": t.PodSpecPatch != "",
		"podResources": t.PodResources != nil, "resourceClaims": t.ResourceClaims != nil, "volumes": t.Volumes != nil,
		"initContainers": t.InitContainers != nil, "sidecars": t.Sidecars != nil, "archiveLocation": t.ArchiveLocation != nil,
		"pendingTimeout": t.PendingTimeout != "",
	} {
		if set {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
