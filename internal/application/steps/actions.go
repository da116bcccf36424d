package steps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/external"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/render"
)

// action is an action of a step that is carried out for an Application.
type action struct {
	*render.Action
	r    *Runner
	a    *deploy.State
	w    *Run
	p    *deploy.Progress
	step string
}

// act carries out an action of a step and reports whether there is an answer yet. If there is none,
// the operation that is under way enqueues the Application when it ends.
func (x *action) act() (render.Answer, bool, error) {
	switch x.Do {
	case "apply":
		return x.apply(x.Params["value"])
	case "apply-in-parallel":
		return x.applyAll()
	case "read":
		return x.read()
	case "patch":
		return x.patch()
	case "list":
		return x.list()
	case "delete":
		return x.delete()
	case "do":
		return x.request()
	case "promCheck":
		return x.metrics()
	case "send":
		mail, err := external.NewMail(x.Params)
		if err != nil {
			return render.Answer{}, false, err
		}
		return x.once(func() (render.Answer, error) { return render.Answer{}, x.r.Requests.Send(x.r.Ctx(), mail) })
	case "component-apply":
		return x.component()
	case "deploy":
		return x.deploy()
	case "list-clusters":
		return render.Answer{Returns: map[string]any{"outputs": map[string]any{"clusters": anyList(x.r.Targets.Names())}}}, true, nil
	case "get-placements-from-topology-policies":
		return x.placements()
	case "apply-env-binding":
		return x.deployEnvironment()
	case "terraform-env-binding":
		return x.cloudResources()
	case "render-config":
		return x.config()
	case "collectServiceEndpoints":
		return x.endpoints()
	}
	return render.Answer{}, false, fmt.Errorf("the operation %s is not supported", x.Do)
}

// request sends an HTTP request. Headers from Secrets are read with the rights of the author.
func (x *action) request() (render.Answer, bool, error) {
	request, err := external.NewRequest(x.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	as, namespace, local := x.a.As, x.a.Key.Namespace, x.r.Targets.Local
	return x.once(func() (render.Answer, error) {
		return x.r.Requests.Request(x.r.Ctx(), request, func(ctx context.Context, name, key string) (string, error) {
			return local.SecretValue(ctx, as, namespace, name, key)
		})
	})
}

func text(m map[string]any, name string) string {
	s, _ := m[name].(string)
	return s
}

func anyList(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

// apply adds an object to the Application's plan, and answers when the object is applied.
func (x *action) apply(value any) (render.Answer, bool, error) {
	w := x.w
	object, ok := value.(map[string]any)
	if !ok {
		return render.Answer{}, false, errors.New("value is not an object")
	}
	if err := x.r.MayReach(x.a, object); err != nil {
		return render.Answer{}, false, err
	}
	if name, _, _ := unstructured.NestedString(object, "metadata", "name"); name == "" {
		return render.Answer{}, false, errors.New("value has no metadata.name")
	}
	r, err := plan.Object(&w.input, w.rules, x.step, text(x.Params, "cluster"), object)
	if err != nil {
		return render.Answer{}, false, err
	}
	ref := records.RefKey(r.Ref)
	at := slices.IndexFunc(w.applied, func(x plan.Resource) bool { return x.Ref == r.Ref })
	if at < 0 || w.applied[at].Hash != r.Hash {
		if at < 0 {
			w.applied = append(w.applied, *r)
		} else {
			w.applied[at] = *r
		}
		f := x.a.Tracker.Flow
		if by, found := f.Made[ref]; found && (by != x.step || f.Taken[ref] != nil) {
			w.takeover = true
			if !records.IsSecret(r.GVK) {
				if f.Taken == nil {
					f.Taken = map[string]json.RawMessage{}
				}
				f.Taken[ref] = r.JSON
			}
		}
		if f.Made == nil {
			f.Made = map[string]string{}
		}
		f.Made[ref] = x.step
		w.stale = true
		return render.Answer{}, false, nil
	}
	if failure := cmp.Or(x.a.Writes.Failure(ref), x.p.Errors[r.Ref]); failure != "" {
		return render.Answer{}, false, errors.New(failure)
	}
	there := x.r.Targets.Seen(r.Ref)
	if there == nil || there.RenderHash != r.Hash || there.Deleting {
		if there != nil && there.Owner != x.a.Key {
			return render.Answer{}, false, fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.Owner)
		}
		return render.Answer{}, false, nil
	}
	return render.Answer{Returns: map[string]any{"value": objects.Map(there)}}, true, nil
}

func (x *action) applyAll() (render.Answer, bool, error) {
	list, _ := x.Params["value"].([]any)
	out, all := make([]any, len(list)), true
	for i, value := range list {
		answer, ready, err := x.apply(value)
		if err != nil {
			return answer, false, fmt.Errorf("value[%d]: %w", i, err)
		}
		if all = all && ready; ready {
			out[i] = answer.Returns["value"]
		}
	}
	return render.Answer{Returns: map[string]any{"value": out}}, all, nil
}

// named returns the target of an action: the cluster, and the object that params["value"] names.
func (x *action) named(params map[string]any) (*objects.Target, plan.Ref, error) {
	value, _ := params["value"].(map[string]any)
	u := &unstructured.Unstructured{Object: value}
	ref := plan.Ref{GVK: u.GroupVersionKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Cluster: text(params, "cluster")}
	if ref.Cluster == oam.LocalCluster {
		ref.Cluster = ""
	}
	if ref.GVK.Kind == "" || ref.GVK.Version == "" {
		return nil, ref, errors.New("value has no apiVersion or no kind")
	}
	t, err := x.r.Targets.Reach(ref.Cluster)
	if err != nil {
		return nil, ref, err
	}
	namespaced, err := t.Kinds.Namespaced(ref.GVK)
	if err != nil {
		return nil, ref, err
	}
	switch {
	case !namespaced:
		ref.Namespace = ""
	case ref.Namespace == "":
		ref.Namespace = x.a.Key.Namespace
	}
	if err := x.r.MayReachNamespace(x.a, ref.Namespace, namespaced); err != nil {
		return nil, ref, err
	}
	return t, ref, nil
}

// read answers with an object, or with the reason why there is none. Changes of the object enqueue
// the Application.
func (x *action) read() (render.Answer, bool, error) {
	t, ref, err := x.named(x.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	if ref.Name == "" {
		return render.Answer{}, false, errors.New("value has no metadata.name")
	}
	object, known, err := x.r.Watches.Get(t, ref, x.a.Key, false)
	switch {
	case err != nil:
		return render.Answer{}, false, err
	case !known:
		return render.Answer{}, false, nil
	case object == nil:
		return render.Answer{Returns: map[string]any{"err": ref.String() + " not found"}}, true, nil
	}
	if err := x.r.MayRead(x.a, t, ref); err != nil {
		return render.Answer{}, false, err
	}
	return render.Answer{Returns: map[string]any{"value": objects.Map(object)}}, true, nil
}

// patch merges a change into an object. The Application need not own the object.
func (x *action) patch() (render.Answer, bool, error) {
	t, ref, err := x.named(x.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	patch, err := json.Marshal(x.Params["patch"])
	if err != nil {
		return render.Answer{}, false, err
	}
	meta := x.a.Meta(t, ref.GVK, "application-step")
	return x.once(func() (render.Answer, error) {
		o, err := objects.AsWritten(ref.Unstructured(""))
		if err != nil {
			return render.Answer{}, err
		}
		return x.written(func(done func(apiwriter.Object, error)) {
			t.Writer.Patch(meta, o, objects.PatchType(ref.GVK), patch, done)
		})
	})
}

// written waits for the outcome of a write. Call it on a goroutine that may block.
func (x *action) written(write func(done func(apiwriter.Object, error))) (render.Answer, error) {
	type outcome struct {
		o   apiwriter.Object
		err error
	}
	ended := make(chan outcome, 1)
	write(func(o apiwriter.Object, err error) { ended <- outcome{o, err} })
	select {
	case <-x.r.Ctx().Done():
		return render.Answer{}, x.r.Ctx().Err()
	case got := <-ended:
		if got.err != nil || got.o == nil {
			return render.Answer{}, got.err
		}
		value, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got.o)
		return render.Answer{Returns: map[string]any{"value": value}}, err
	}
}

func (x *action) list() (render.Answer, bool, error) {
	resource, _ := x.Params["resource"].(map[string]any)
	filter, _ := x.Params["filter"].(map[string]any)
	t, ref, err := x.named(map[string]any{
		"cluster": x.Params["cluster"], "value": map[string]any{
			"apiVersion": resource["apiVersion"], "kind": resource["kind"], "metadata": map[string]any{"namespace": text(filter, "namespace")},
		},
	})
	if err != nil {
		return render.Answer{}, false, err
	}
	m, err := t.Kinds.Mapping(ref.GVK)
	if err != nil {
		return render.Answer{}, false, err
	}
	options := metav1.ListOptions{Limit: deploy.ListMax, LabelSelector: labelsOf(filter).String()}
	as := x.a.As
	return x.once(func() (render.Answer, error) {
		ctx, cancel := context.WithTimeout(x.r.Ctx(), objects.ReadTimeout)
		defer cancel()
		client, err := t.Reader(as)
		if err != nil {
			return render.Answer{}, err
		}
		list, err := client.Resource(m.Resource).Namespace(ref.Namespace).List(ctx, options)
		if err != nil {
			return render.Answer{}, err
		}
		return listed(list, m.Resource.Resource)
	})
}

// listed returns the answer to list. A list that is cut short is an error: the step would take it
// for all objects.
func listed(list *unstructured.UnstructuredList, resource string) (render.Answer, error) {
	if list.GetContinue() != "" {
		return render.Answer{}, fmt.Errorf("there are more than %d %s", deploy.ListMax, resource)
	}
	items := make([]any, len(list.Items))
	for i := range list.Items {
		list.Items[i].SetManagedFields(nil)
		items[i] = list.Items[i].Object
	}
	return render.Answer{Returns: map[string]any{"values": map[string]any{"items": items}}}, nil
}

// delete deletes the object that value names or, with a filter, the objects of that kind that
// have the filter's labels.
func (x *action) delete() (render.Answer, bool, error) {
	params := x.Params
	filter, filtered := params["filter"].(map[string]any)
	if filtered {
		value, _ := params["value"].(map[string]any)
		namespace := text(filter, "namespace")
		if namespace == "" {
			namespace, _, _ = unstructured.NestedString(value, "metadata", "namespace")
		}
		params = map[string]any{"cluster": params["cluster"], "value": map[string]any{
			"apiVersion": value["apiVersion"], "kind": value["kind"], "metadata": map[string]any{"namespace": namespace},
		}}
	}
	t, ref, err := x.named(params)
	if err != nil {
		return render.Answer{}, false, err
	}
	match := labelsOf(filter)
	switch {
	case filtered && len(match) == 0:
		return render.Answer{}, false, errors.New("filter has no matchingLabels: they say what is to be deleted")
	case !filtered && ref.Name == "":
		return render.Answer{}, false, errors.New("value has no metadata.name, and there is no filter")
	}
	// Objects that this step or an earlier one has applied leave the plan.
	w := x.w
	w.applied = slices.DeleteFunc(w.applied, func(made plan.Resource) bool {
		gone := made.Ref == ref
		if filtered {
			at := ref
			at.Name = made.Ref.Name
			var u unstructured.Unstructured
			gone = made.Ref == at && u.UnmarshalJSON(made.JSON) == nil && match.AsSelectorPreValidated().Matches(labels.Set(u.GetLabels()))
		}
		if gone {
			delete(x.a.Tracker.Flow.Made, records.RefKey(made.Ref))
			delete(x.a.Tracker.Flow.Taken, records.RefKey(made.Ref))
			w.stale = true
		}
		return gone
	})
	as, meta := x.a.As, x.a.Meta(t, ref.GVK, "application-step")
	remove := func(name string) error {
		each := ref
		each.Name = name
		_, err := x.written(func(done func(apiwriter.Object, error)) {
			t.Writer.Delete(meta, each.Unstructured(""), apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground},
				func(err error) { done(nil, err) })
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if !filtered {
		return x.once(func() (render.Answer, error) { return render.Answer{}, remove(ref.Name) })
	}
	m, err := t.Kinds.Mapping(ref.GVK)
	if err != nil {
		return render.Answer{}, false, err
	}
	return x.once(func() (render.Answer, error) {
		client, err := t.Reader(as)
		if err != nil {
			return render.Answer{}, err
		}
		list := func(o metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(x.r.Ctx(), objects.ReadTimeout)
			defer cancel()
			return client.Resource(m.Resource).Namespace(ref.Namespace).List(ctx, o)
		}
		options := metav1.ListOptions{Limit: deploy.ListMax, LabelSelector: match.String()}
		return render.Answer{}, pager.New(pager.SimplePageFunc(list)).EachListItem(x.r.Ctx(), options, func(o runtime.Object) error {
			return remove(o.(*unstructured.Unstructured).GetName())
		})
	})
}

// labelsOf returns the labels that a filter selects by.
func labelsOf(filter map[string]any) labels.Set {
	set := labels.Set{}
	match, _ := filter["matchingLabels"].(map[string]any)
	for k, v := range match {
		set[k] = fmt.Sprint(v)
	}
	return set
}
