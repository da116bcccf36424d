package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// act carries out an action of a step and reports whether there is an answer yet. If not, what is
// under way enqueues the Application when it ends.
func (c *Controller) act(ctx context.Context, a *app, p *progress, step string, action *render.Action) (render.Answer, bool, error) {
	switch action.Do {
	case "apply":
		return c.actApply(a, step, action.Params["value"], text(action.Params, "cluster"))
	case "apply-in-parallel":
		return c.actApplyAll(a, step, action)
	case "read":
		return c.actRead(ctx, a, action)
	case "patch":
		return c.actPatch(ctx, a, step, action)
	case "list":
		return c.actList(ctx, a, step, action)
	case "delete":
		return c.actDelete(ctx, a, step, action)
	case "do":
		request, err := newRequest(action.Params)
		if err != nil {
			return render.Answer{}, false, err
		}
		as := a.as
		return c.once(a, step, action.Key, func() (render.Answer, error) { return c.request(ctx, as, a.key.Namespace, request) })
	case "send":
		mail, err := newMail(action.Params)
		if err != nil {
			return render.Answer{}, false, err
		}
		return c.once(a, step, action.Key, func() (render.Answer, error) { return render.Answer{}, c.send(ctx, mail) })
	case "component-apply":
		return c.actComponent(a, p, step, action)
	case "deploy":
		return c.actDeploy(a, p, step, action)
	case "list-clusters":
		return render.Answer{Returns: map[string]any{"outputs": map[string]any{"clusters": anyList(c.targets.names())}}}, true, nil
	case "get-placements-from-topology-policies":
		return c.actPlacements(a, action)
	case "collectServiceEndpoints":
		return c.actEndpoints(ctx, a, action)
	}
	return render.Answer{}, false, fmt.Errorf("the operation %s is not supported", action.Do)
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

// actApply adds an object to the Application's plan, and answers when the object is applied.
func (c *Controller) actApply(a *app, step string, value any, cluster string) (render.Answer, bool, error) {
	w := a.course
	object, ok := value.(map[string]any)
	if !ok {
		return render.Answer{}, false, errors.New("value is not an object")
	}
	if err := c.mayReach(a, object); err != nil {
		return render.Answer{}, false, err
	}
	if name, _, _ := unstructured.NestedString(object, "metadata", "name"); name == "" {
		return render.Answer{}, false, errors.New("value has no metadata.name")
	}
	r, err := plan.Object(&w.input, w.opened.Policies, step, cluster, object)
	if err != nil {
		return render.Answer{}, false, err
	}
	ref := refKey(r.Ref)
	at := slices.IndexFunc(w.made, func(x plan.Resource) bool { return x.Ref == r.Ref })
	if at < 0 || w.made[at].Hash != r.Hash {
		if at < 0 {
			w.made = append(w.made, *r)
		} else {
			w.made[at] = *r
		}
		f := a.record.Flow
		if by, found := f.Made[ref]; found && (by != step || f.Taken[ref] != nil) {
			w.taken = true
			if !isSecret(r.GVK) {
				if f.Taken == nil {
					f.Taken = map[string]json.RawMessage{}
				}
				f.Taken[ref] = r.JSON
			}
		}
		if f.Made == nil {
			f.Made = map[string]string{}
		}
		f.Made[ref] = step
		w.stale = true
		return render.Answer{}, false, nil
	}
	if failure := a.failures()[ref]; failure != "" {
		return render.Answer{}, false, errors.New(failure)
	}
	there := c.seen(r.Ref)
	if there == nil || there.renderHash != r.Hash || there.deleting {
		if there != nil && there.owner != a.key {
			return render.Answer{}, false, fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.owner)
		}
		return render.Answer{}, false, nil
	}
	return render.Answer{Returns: map[string]any{"value": asMap(there)}}, true, nil
}

func (c *Controller) actApplyAll(a *app, step string, action *render.Action) (render.Answer, bool, error) {
	list, _ := action.Params["value"].([]any)
	out, all := make([]any, len(list)), true
	for i, value := range list {
		answer, ready, err := c.actApply(a, step, value, text(action.Params, "cluster"))
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
func (c *Controller) named(a *app, params map[string]any) (*target, plan.Ref, error) {
	value, _ := params["value"].(map[string]any)
	u := &unstructured.Unstructured{Object: value}
	ref := plan.Ref{GVK: u.GroupVersionKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Cluster: text(params, "cluster")}
	if ref.Cluster == oam.LocalCluster {
		ref.Cluster = ""
	}
	if ref.GVK.Kind == "" || ref.GVK.Version == "" {
		return nil, ref, errors.New("value has no apiVersion or no kind")
	}
	t, err := c.reach(ref.Cluster)
	if err != nil {
		return nil, ref, err
	}
	namespaced, err := t.kinds.Namespaced(ref.GVK)
	if err != nil {
		return nil, ref, err
	}
	switch {
	case !namespaced:
		ref.Namespace = ""
	case ref.Namespace == "":
		ref.Namespace = a.key.Namespace
	}
	if err := c.mayReachNamespace(a, ref.Namespace, namespaced); err != nil {
		return nil, ref, err
	}
	return t, ref, nil
}

// mayReach returns an error if a step may not use an object. Unless Config.UnconfinedSteps is set,
// what Applications read and what their steps write is limited to the Application's namespace.
// Applications in oam.SystemNamespace are not limited. The limit holds whether an Application acts
// with its author's rights or with the manager's.
func (c *Controller) mayReach(a *app, object map[string]any) error {
	u := &unstructured.Unstructured{Object: object}
	return c.mayReachNamespace(a, u.GetNamespace(), true)
}

func (c *Controller) mayReachNamespace(a *app, namespace string, namespaced bool) error {
	if c.cfg.UnconfinedSteps || a.key.Namespace == oam.SystemNamespace || namespaced && (namespace == "" || namespace == a.key.Namespace) {
		return nil
	}
	if !namespaced {
		return errors.New("applications do not reach objects without a namespace")
	}
	return fmt.Errorf("applications do not reach objects of namespace %s from namespace %s", namespace, a.key.Namespace)
}

// actRead answers with an object, or with the reason why there is none. The object's changes
// enqueue the Application.
func (c *Controller) actRead(ctx context.Context, a *app, action *render.Action) (render.Answer, bool, error) {
	t, ref, err := c.named(a, action.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	if ref.Name == "" {
		return render.Answer{}, false, errors.New("value has no metadata.name")
	}
	object, known, err := c.spies.look(t, ref, a.key, false)
	switch {
	case err != nil:
		return render.Answer{}, false, err
	case !known:
		return render.Answer{}, false, nil
	case object == nil:
		return render.Answer{Returns: map[string]any{"err": ref.String() + " not found"}}, true, nil
	}
	if err := c.mayRead(ctx, a, t, ref); err != nil {
		return render.Answer{}, false, err
	}
	return render.Answer{Returns: map[string]any{"value": asMap(object)}}, true, nil
}

// actPatch merges a change into an object, whether or not the Application owns it.
func (c *Controller) actPatch(ctx context.Context, a *app, step string, action *render.Action) (render.Answer, bool, error) {
	t, ref, err := c.named(a, action.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	patch, err := json.Marshal(action.Params["patch"])
	if err != nil {
		return render.Answer{}, false, err
	}
	return c.once(a, step, action.Key, func() (render.Answer, error) {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(ref.GVK)
		u.SetNamespace(ref.Namespace)
		u.SetName(ref.Name)
		o, err := asWritten(u)
		if err != nil {
			return render.Answer{}, err
		}
		return c.written(ctx, func(done func(apiwriter.Object, error)) {
			t.writer.Patch(c.meta(a, t, ref.GVK, "application-step"), o, patchType(ref.GVK), patch, done)
		})
	})
}

// written waits for the outcome of a write. Call it on a goroutine that may block.
func (c *Controller) written(ctx context.Context, write func(done func(apiwriter.Object, error))) (render.Answer, error) {
	type outcome struct {
		o   apiwriter.Object
		err error
	}
	ended := make(chan outcome, 1)
	write(func(o apiwriter.Object, err error) { ended <- outcome{o, err} })
	select {
	case <-ctx.Done():
		return render.Answer{}, ctx.Err()
	case got := <-ended:
		if got.err != nil || got.o == nil {
			return render.Answer{}, got.err
		}
		value, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got.o)
		return render.Answer{Returns: map[string]any{"value": value}}, err
	}
}

// listMax bounds the number of objects that one list returns to a step.
const listMax = 500

func (c *Controller) actList(ctx context.Context, a *app, step string, action *render.Action) (render.Answer, bool, error) {
	resource, _ := action.Params["resource"].(map[string]any)
	filter, _ := action.Params["filter"].(map[string]any)
	t, ref, err := c.named(a, map[string]any{
		"cluster": action.Params["cluster"], "value": map[string]any{
			"apiVersion": resource["apiVersion"], "kind": resource["kind"], "metadata": map[string]any{"namespace": text(filter, "namespace")},
		},
	})
	if err != nil {
		return render.Answer{}, false, err
	}
	m, err := t.kinds.mapping(ref.GVK)
	if err != nil {
		return render.Answer{}, false, err
	}
	options := metav1.ListOptions{Limit: listMax, LabelSelector: labelsOf(filter).String()}
	as := a.as
	return c.once(a, step, action.Key, func() (render.Answer, error) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		client, err := t.reader(as)
		if err != nil {
			return render.Answer{}, err
		}
		list, err := client.Resource(m.Resource).Namespace(ref.Namespace).List(ctx, options)
		if err != nil {
			return render.Answer{}, err
		}
		items := make([]any, len(list.Items))
		for i := range list.Items {
			list.Items[i].SetManagedFields(nil)
			items[i] = list.Items[i].Object
		}
		return render.Answer{Returns: map[string]any{"values": map[string]any{"items": items}}}, nil
	})
}

// actDelete deletes the object that value names or, with a filter, the objects of that kind that
// have the filter's labels.
func (c *Controller) actDelete(ctx context.Context, a *app, step string, action *render.Action) (render.Answer, bool, error) {
	params := action.Params
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
	t, ref, err := c.named(a, params)
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
	w := a.course
	w.made = slices.DeleteFunc(w.made, func(x plan.Resource) bool {
		gone := x.Ref == ref
		if filtered {
			at := ref
			at.Name = x.Ref.Name
			var u unstructured.Unstructured
			gone = x.Ref == at && u.UnmarshalJSON(x.JSON) == nil && match.AsSelectorPreValidated().Matches(labels.Set(u.GetLabels()))
		}
		if gone {
			delete(a.record.Flow.Made, refKey(x.Ref))
			delete(a.record.Flow.Taken, refKey(x.Ref))
			w.stale = true
		}
		return gone
	})
	remove := func(name string) error {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(ref.GVK)
		u.SetNamespace(ref.Namespace)
		u.SetName(name)
		_, err := c.written(ctx, func(done func(apiwriter.Object, error)) {
			t.writer.Delete(c.meta(a, t, ref.GVK, "application-step"), u, apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground},
				func(err error) { done(nil, err) })
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if !filtered {
		return c.once(a, step, action.Key, func() (render.Answer, error) { return render.Answer{}, remove(ref.Name) })
	}
	m, err := t.kinds.mapping(ref.GVK)
	if err != nil {
		return render.Answer{}, false, err
	}
	as := a.as
	return c.once(a, step, action.Key, func() (render.Answer, error) {
		client, err := t.reader(as)
		if err != nil {
			return render.Answer{}, err
		}
		options := metav1.ListOptions{Limit: listMax, LabelSelector: match.String()}
		for {
			page, cancel := context.WithTimeout(ctx, readTimeout)
			list, err := client.Resource(m.Resource).Namespace(ref.Namespace).List(page, options)
			cancel()
			if err != nil {
				return render.Answer{}, err
			}
			for i := range list.Items {
				if err := remove(list.Items[i].GetName()); err != nil {
					return render.Answer{}, err
				}
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				return render.Answer{}, nil
			}
		}
	})
}

// labelsOf returns the labels that a filter asks for.
func labelsOf(filter map[string]any) labels.Set {
	set := labels.Set{}
	match, _ := filter["matchingLabels"].(map[string]any)
	for k, v := range match {
		set[k] = fmt.Sprint(v)
	}
	return set
}

// actComponent deploys a component that the step's template describes, and answers when the
// component is healthy.
func (c *Controller) actComponent(a *app, p *progress, step string, action *render.Action) (render.Answer, bool, error) {
	if action.Params["patch"] != nil {
		return render.Answer{}, false, errors.New("patch: a component is changed by traits and override policies")
	}
	value, _ := action.Params["value"].(map[string]any)
	data, err := json.Marshal(value)
	if err != nil {
		return render.Answer{}, false, err
	}
	var comp oam.Component
	if err := json.Unmarshal(data, &comp); err != nil {
		return render.Answer{}, false, fmt.Errorf("value is not a component: %w", err)
	}
	if comp.Name == "" || comp.Type == "" {
		return render.Answer{}, false, errors.New("value is not a component: it has no name or no type")
	}
	unit := plan.DeployUnit{Value: &comp, Cluster: text(action.Params, "cluster"), Namespace: text(action.Params, "namespace")}
	if healthy, ok := action.Params["waitHealthy"].(bool); ok && !healthy {
		unit.Unwatched = true
	}
	part, ready, err := c.actUnit(a, p, step+"/"+action.Key, unit)
	if !ready || err != nil {
		return render.Answer{}, false, err
	}
	returns := map[string]any{}
	for i := range part.plan.Components {
		objects := a.course.objects(c, a, part.plan.Components[i].Key())
		delete(objects, "context")
		maps.Copy(returns, objects)
	}
	return render.Answer{Returns: returns}, true, nil
}

func (c *Controller) actDeploy(a *app, p *progress, step string, action *render.Action) (render.Answer, bool, error) {
	var in struct {
		Policies       []string        `json:"policies"`
		InlinePolicies []oam.AppPolicy `json:"inlinePolicies"`
	}
	data, err := json.Marshal(action.Params)
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err != nil {
		return render.Answer{}, false, err
	}
	policies, err := c.chosen(a.course, in.Policies)
	if err != nil {
		return render.Answer{}, false, err
	}
	_, ready, err := c.actUnit(a, p, step+"/"+action.Key, plan.DeployUnit{Policies: append(policies, in.InlinePolicies...)})
	return render.Answer{}, ready, err
}

// actUnit deploys a unit that only the step's template describes, and records the unit.
func (c *Controller) actUnit(a *app, p *progress, key string, unit plan.DeployUnit) (*part, bool, error) {
	f := a.record.Flow
	if _, ok := f.Units[key]; !ok {
		if f.Units == nil {
			f.Units = map[string]plan.DeployUnit{}
		}
		f.Units[key] = unit
	}
	r, part := c.unitResult(a, p, key, unit)
	switch r.Outcome {
	case flow.Succeeded:
		return part, true, nil
	case flow.Running:
		return part, false, nil
	}
	return part, false, errors.New(r.Message)
}

func (c *Controller) actPlacements(a *app, action *render.Action) (render.Answer, bool, error) {
	names, _ := action.Params["policies"].([]any)
	out := []any{}
	if len(names) == 0 {
		for _, name := range slices.Sorted(maps.Keys(a.course.policies)) {
			if a.course.policies[name].Type == plan.TypeTopology {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		out = append(out, map[string]any{"cluster": oam.LocalCluster, "namespace": a.key.Namespace})
	}
	for _, name := range names {
		policies, err := c.chosen(a.course, []string{fmt.Sprint(name)})
		if err != nil {
			return render.Answer{}, false, err
		}
		if policies[0].Type != plan.TypeTopology {
			continue
		}
		in := a.course.input
		in.Spec = &oam.ApplicationSpec{Policies: policies}
		places, err := plan.Placements(&in)
		if err != nil {
			return render.Answer{}, false, err
		}
		for _, at := range places {
			out = append(out, map[string]any{"cluster": at.ClusterName(), "namespace": at.Namespace})
		}
	}
	return render.Answer{Returns: map[string]any{"placements": out}}, true, nil
}

// actEndpoints answers with the addresses of an Application's Services and Ingresses.
func (c *Controller) actEndpoints(ctx context.Context, a *app, action *render.Action) (render.Answer, bool, error) {
	app, _ := action.Params["app"].(map[string]any)
	filter, _ := app["filter"].(map[string]any)
	k := key(text(app, "namespace"), text(app, "name"))
	if k.Namespace == "" {
		k.Namespace = a.key.Namespace
	}
	if k.Name == "" {
		k.Name = a.key.Name
	}
	if err := c.mayReachNamespace(a, k.Namespace, true); err != nil {
		return render.Answer{}, false, err
	}
	resources := a.record.resources
	if k != a.key {
		// Watch the other Application: its status changes when its services are deployed.
		other := plan.Ref{GVK: oam.GroupVersion.WithKind("Application"), Namespace: k.Namespace, Name: k.Name}
		if _, known, err := c.spies.look(c.targets.local, other, a.key, false); err != nil || !known {
			return render.Answer{}, false, err
		}
		if err := c.mayRead(ctx, a, c.targets.local, other); err != nil {
			return render.Answer{}, false, err
		}
		raw, ok := c.trackers.Get("", trackerName(k.Namespace, k.Name))
		if !ok {
			return render.Answer{}, false, fmt.Errorf("there is no application %s", k)
		}
		rt, err := c.trackers.open(raw)
		if err != nil {
			return render.Answer{}, false, err
		}
		resources = rt.Spec.ManagedResources
	}
	var components []string
	list, _ := filter["components"].([]any)
	for _, x := range list {
		components = append(components, fmt.Sprint(x))
	}
	out := []any{}
	for i := range resources {
		m := &resources[i]
		if len(components) > 0 && !slices.Contains(components, m.Component) || m.Kind != "Service" && m.Kind != "Ingress" {
			continue
		}
		there := asMap(c.seen(refOf(m)))
		for _, e := range endpointsOf(there) {
			cluster := m.Cluster
			if cluster == "" {
				cluster = oam.LocalCluster
			}
			out = append(out, map[string]any{
				"endpoint": e, "cluster": cluster, "component": m.Component,
				"ref": map[string]any{"apiVersion": m.APIVersion, "kind": m.Kind, "namespace": m.Namespace, "name": m.Name},
			})
		}
	}
	return render.Answer{Returns: map[string]any{"list": out}}, true, nil
}

// endpointsOf returns the addresses of a Service or an Ingress.
func endpointsOf(o map[string]any) []map[string]any {
	u := unstructured.Unstructured{Object: o}
	var out []map[string]any
	if u.GetKind() == "Ingress" {
		rules, _, _ := unstructured.NestedSlice(o, "spec", "rules")
		tls, _, _ := unstructured.NestedSlice(o, "spec", "tls")
		protocol, port := "http", int64(80)
		if len(tls) > 0 {
			protocol, port = "https", 443
		}
		for _, r := range rules {
			rule, _ := r.(map[string]any)
			paths, _, _ := unstructured.NestedSlice(rule, "http", "paths")
			for _, p := range paths {
				path, _ := p.(map[string]any)
				out = append(out, map[string]any{
					"protocol": "TCP", "appProtocol": protocol, "host": rule["host"], "port": port, "path": path["path"], "inner": false,
				})
			}
		}
		return out
	}
	kind, _, _ := unstructured.NestedString(o, "spec", "type")
	ports, _, _ := unstructured.NestedSlice(o, "spec", "ports")
	hosts, inner := []string{u.GetName() + "." + u.GetNamespace()}, true
	if kind == "LoadBalancer" {
		hosts, inner = nil, false
		addresses, _, _ := unstructured.NestedSlice(o, "status", "loadBalancer", "ingress")
		for _, x := range addresses {
			m, _ := x.(map[string]any)
			if host := strings.TrimSpace(text(m, "hostname") + text(m, "ip")); host != "" {
				hosts = append(hosts, host)
			}
		}
	}
	for _, host := range hosts {
		for _, p := range ports {
			port, _ := p.(map[string]any)
			e := map[string]any{"protocol": port["protocol"], "host": host, "port": port["port"], "inner": inner}
			if name := text(port, "name"); name != "" {
				e["portName"] = name
			}
			out = append(out, e)
		}
	}
	return out
}
