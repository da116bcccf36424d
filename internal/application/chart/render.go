package chart

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "k8s.io/apimachinery/pkg/util/json"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// Bounds on what a chart makes.
const (
	renderedMax = 16 << 20 // bytes
	objectsMax  = 2000
	countMax    = 1 << 16 // numbers from until, untilStep and seq
	repeatMax   = 1 << 20 // bytes from repeat
)

// Request is the input of Chart.Render.
type Request struct {
	// Release and Namespace are the release's name and namespace.
	Release, Namespace string
	// Revision is the number of the release's revision, from 1.
	Revision int64
	Values   map[string]any
	// KubeVersion is the cluster's version, such as v1.36.3. APIVersions has the API versions and
	// kinds that the cluster serves, such as apps/v1 and apps/v1/Deployment.
	KubeVersion string
	APIVersions []string
	// Now is the current time that templates see.
	Now time.Time
	// SkipCRDs leaves out the objects in the folder crds. SkipHooks leaves out all hooks.
	SkipCRDs, SkipHooks bool
}

// Object is one object of a release.
type Object struct {
	Object map[string]any
	// Wave is the object's place in the order of creation: lower waves are created first. Wave is 0
	// for all objects but hooks, CustomResourceDefinitions and Namespaces.
	Wave int
	// Hook is set if the object is a hook. A hook is created anew when it changes.
	Hook bool
	// Once has the generated values, as a JSON merge patch, or nil.
	Once map[string]any
}

// Waves of objects that are not hooks.
const (
	waveKinds      = -2 * objectsMax
	waveNamespaces = waveKinds + 1
)

// Rendered is the result of Chart.Render.
type Rendered struct {
	Objects []Object
	// Left has the hooks that are not created, as KIND/NAME (EVENT).
	Left []string
}

// release renders the objects of a release, and separates generated values from them.
func (a archive) release(req *Request) (*Rendered, error) {
	chart, err := a.load()
	if err != nil {
		return nil, err
	}
	random := makesUp(chart)
	out, err := render(chart, req, 0)
	if err != nil || !random {
		return out, err
	}
	if chart, err = a.load(); err != nil {
		return nil, err
	}
	again, err := render(chart, req, 20*365*24*time.Hour)
	if err != nil {
		return nil, err
	}
	if len(again.Objects) != len(out.Objects) {
		return nil, errors.New("it makes other objects each time that it is rendered")
	}
	for i := range out.Objects {
		a, b := unstructured.Unstructured{Object: out.Objects[i].Object}, unstructured.Unstructured{Object: again.Objects[i].Object}
		if a.GetKind() != b.GetKind() || a.GetName() != b.GetName() || a.GetNamespace() != b.GetNamespace() {
			return nil, fmt.Errorf("the name of %s %s is another each time that it is rendered", a.GetKind(), a.GetName())
		}
		out.Objects[i].Once, _ = apart(a.Object, b.Object).(map[string]any)
	}
	return out, nil
}

// render renders once. ahead is added to the current time that templates see.
func render(chart *v2.Chart, req *Request, ahead time.Duration) (*Rendered, error) {
	version, err := common.ParseKubeVersion(req.KubeVersion)
	if err != nil {
		return nil, err
	}
	if need := chart.Metadata.KubeVersion; need != "" && !util.IsCompatibleRange(need, version.String()) {
		return nil, fmt.Errorf("chart %s needs Kubernetes %s; this is %s", chart.Name(), need, version)
	}
	values := deepCopy(req.Values)
	if err := util.ProcessDependencies(chart, values); err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{
		Name: req.Release, Namespace: req.Namespace, Revision: int(req.Revision), IsInstall: req.Revision <= 1, IsUpgrade: req.Revision > 1,
	}
	caps := &common.Capabilities{KubeVersion: *version, APIVersions: req.APIVersions, HelmVersion: common.DefaultCapabilities.HelmVersion}
	all, err := chartutil.ToRenderValuesWithSchemaValidation(chart, values, release, caps, true)
	if err != nil {
		return nil, err
	}
	// The schema is checked here, because the library would load the schema's references from
	// anywhere.
	if given, ok := all["Values"].(common.Values); ok {
		err = checkValues(chart, given)
	} else if given, ok := all["Values"].(map[string]any); ok {
		err = checkValues(chart, given)
	}
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{CustomTemplateFuncs: functions(req.Now.Add(ahead))}.Render(chart, all)
	if err != nil {
		return nil, err
	}
	out := &Rendered{}
	if !req.SkipCRDs {
		for _, crd := range chart.CRDObjects() {
			if err := out.add(crd.Filename, crd.File.Data, req); err != nil {
				return nil, err
			}
		}
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if size += len(files[name]); size > renderedMax {
			return nil, fmt.Errorf("it makes more than %d bytes", renderedMax)
		}
		if base := path.Base(name); base == "NOTES.txt" || strings.HasPrefix(base, "_") {
			continue
		}
		if err := out.add(name, []byte(files[name]), req); err != nil {
			return nil, err
		}
	}
	out.wavesOfHooks()
	return out, nil
}

// functions returns the template functions that need bounds or another clock.
func functions(now time.Time) template.FuncMap {
	count := func(start, stop, step int) ([]int, error) {
		if step == 0 {
			return nil, errors.New("a list of numbers whose step is 0")
		}
		if step > 0 && start >= stop || step < 0 && start <= stop {
			return []int{}, nil
		}
		// The distance may be too large for an int.
		distance, stride := uint64(stop)-uint64(start), uint64(step)
		if step < 0 {
			distance, stride = -distance, -stride
		}
		numbers := (distance-1)/stride + 1
		if numbers > countMax {
			return nil, fmt.Errorf("a list of more than %d numbers", countMax)
		}
		out := make([]int, numbers)
		for i := range out {
			out[i] = start + i*step
		}
		return out, nil
	}
	return template.FuncMap{
		"now": func() time.Time { return now },
		"until": func(n int) ([]int, error) {
			if n < 0 {
				return count(0, n, -1)
			}
			return count(0, n, 1)
		},
		"untilStep": count,
		"seq": func(limits ...int) (string, error) {
			start, step, end := 1, 1, 0
			switch len(limits) {
			case 1:
				end = limits[0]
			case 2:
				start, end = limits[0], limits[1]
			case 3:
				start, step, end = limits[0], limits[1], limits[2]
			default:
				return "", nil
			}
			if len(limits) < 3 && end < start {
				step = -1
			}
			if step > 0 && end < start || step < 0 && end > start {
				return "", nil
			}
			past := 1
			if step < 0 {
				past = -1
			}
			numbers, err := count(start, end+past, step)
			text := make([]string, len(numbers))
			for i, n := range numbers {
				text[i] = strconv.Itoa(n)
			}
			return strings.Join(text, " "), err
		},
		"repeat": func(n int, s string) (string, error) {
			if n < 0 || n > math.MaxInt32 || n*len(s) > repeatMax {
				return "", fmt.Errorf("repeat makes more than %d bytes", repeatMax)
			}
			return strings.Repeat(s, n), nil
		},
	}
}

// add adds the objects of a file.
func (r *Rendered) add(file string, data []byte, req *Request) error {
	docs := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := yamldoc.Check(doc, renderedMax, "a document"); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		text, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		var value any
		if err := kjson.Unmarshal(text, &value); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if value == nil {
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: it has a document that is not an object", file)
		}
		if err := r.take(file, object, req); err != nil {
			return err
		}
	}
}

func (r *Rendered) take(file string, object map[string]any, req *Request) error {
	if len(object) == 0 {
		return nil
	}
	u := unstructured.Unstructured{Object: object}
	if items, list := object["items"].([]any); list && strings.HasSuffix(u.GetKind(), "List") {
		for _, item := range items {
			inner, ok := item.(map[string]any)
			if !ok {
				return fmt.Errorf("%s: the list has an item that is not an object", file)
			}
			if err := r.take(file, inner, req); err != nil {
				return err
			}
		}
		return nil
	}
	if u.GetKind() == "" || u.GetAPIVersion() == "" {
		return fmt.Errorf("%s: %w", file, errNoKind)
	}
	if len(r.Objects) >= objectsMax {
		return fmt.Errorf("it makes more than %d objects", objectsMax)
	}
	o := Object{Object: object}
	switch u.GetKind() {
	case "CustomResourceDefinition":
		o.Wave = waveKinds
	case "Namespace":
		o.Wave = waveNamespaces
	}
	if events := u.GetAnnotations()[hookAnnotation]; events != "" {
		side, left := sideOf(events, req.Revision)
		if req.SkipHooks || side == 0 {
			if left == "" {
				left = events
			}
			if left == "test" || left == "test-success" {
				return nil // tests are not expected to run
			}
			r.Left = append(r.Left, fmt.Sprintf("%s/%s (%s)", u.GetKind(), u.GetName(), left))
			return nil
		}
		o.Hook, o.Wave = true, side
	}
	r.Objects = append(r.Objects, o)
	return nil
}

const (
	hookAnnotation   = "helm.sh/hook"
	weightAnnotation = "helm.sh/hook-weight"
)

// sideOf returns -1 if a hook runs before everything else, 1 if it runs after, and 0 if it does not
// run. left is the event because of which it does not run.
func sideOf(events string, revision int64) (side int, left string) {
	for e := range strings.SplitSeq(events, ",") {
		switch e = strings.TrimSpace(e); e {
		case "pre-install", "pre-upgrade", "post-install", "post-upgrade":
			if strings.HasSuffix(e, "upgrade") && revision <= 1 {
				left = e
				continue // nothing to upgrade
			}
			if strings.HasPrefix(e, "pre-") {
				return -1, ""
			}
			side = 1
		default:
			left = e
		}
	}
	return side, left
}

// wavesOfHooks sets the waves of hooks in the order of their weights, and sorts all objects by
// wave.
func (r *Rendered) wavesOfHooks() {
	weight := func(o *Object) int {
		u := unstructured.Unstructured{Object: o.Object}
		w, _ := strconv.Atoi(u.GetAnnotations()[weightAnnotation]) // 0 if missing
		return w
	}
	var weights []int
	for i := range r.Objects {
		if r.Objects[i].Hook {
			weights = append(weights, weight(&r.Objects[i]))
		}
	}
	slices.Sort(weights)
	weights = slices.Compact(weights)
	for i := range r.Objects {
		o := &r.Objects[i]
		if !o.Hook {
			continue
		}
		at, _ := slices.BinarySearch(weights, weight(o))
		if o.Wave > 0 {
			o.Wave = at + 1
		} else {
			o.Wave = at - len(weights)
		}
	}
	slices.SortStableFunc(r.Objects, func(a, b Object) int { return a.Wave - b.Wave })
}

// apart removes from a the values that differ in b, and returns them, or nil if there are none. It
// removes a list that differs as a whole, because a merge patch cannot contain a part of a list.
func apart(a, b any) any {
	was, ok := a.(map[string]any)
	is, both := b.(map[string]any)
	if !ok || !both {
		if fmt.Sprint(a) == fmt.Sprint(b) {
			return nil
		}
		return a
	}
	out := map[string]any{}
	for k, v := range was {
		other, there := is[k]
		if !there {
			out[k] = v
			delete(was, k)
			continue
		}
		part := apart(v, other)
		if part == nil {
			continue
		}
		out[k] = part
		if inner, deeper := v.(map[string]any); !deeper || len(inner) == 0 {
			delete(was, k)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func deepCopy(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return (&unstructured.Unstructured{Object: m}).DeepCopy().Object
}

// MergeValues merges values as Helm merges values files: maps are merged; any other value in over
// replaces the one in under.
func MergeValues(under, over map[string]any) map[string]any {
	out := maps.Clone(under)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range over {
		was, ok := out[k].(map[string]any)
		is, both := v.(map[string]any)
		if ok && both {
			out[k] = MergeValues(was, is)
			continue
		}
		out[k] = v
	}
	return out
}
