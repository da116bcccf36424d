package resource

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/incluster"
)

// An object with a condition is read again after lookFirst, then at doubling intervals up to
// lookLast.
const (
	lookFirst = 200 * time.Millisecond
	lookLast  = 5 * time.Second
)

// maxManifest bounds a manifest read from a file, in bytes.
const maxManifest = 8 << 20

// object is any object of the cluster.
type object = map[string]any

// target is the location of an object in the API.
type target struct {
	collection string // path of its kind and namespace
	name       string
}

func (t target) path() string { return t.collection + "/" + url.PathEscape(t.name) }

// result is a target, and its object after the action: nil if the object was deleted.
type result struct {
	target
	object object
}

// actor carries out one plan.
type actor struct {
	client *incluster.Client
	plan   *execapi.ResourcePlan
	flags  flags
	log    io.Writer
}

// Act carries out the plan and returns the output parameters. Every error is a failure of the
// template.
func Act(ctx context.Context, client *incluster.Client, plan *execapi.ResourcePlan, log io.Writer) (map[string]string, error) {
	given, err := parseFlags(plan.Flags, plan.Action)
	if err != nil {
		return nil, err
	}
	a := &actor{client: client, plan: plan, flags: given, log: log}
	conditions, err := parseConditions(plan.Success, plan.Failure)
	if err != nil {
		return nil, err
	}
	results, err := a.act(ctx)
	if err != nil {
		return nil, err
	}
	if plan.Action == "delete" {
		return parameters(plan.Parameters, nil)
	}
	var last object
	for _, r := range results {
		if last, err = a.await(ctx, r.target, conditions, r.object); err != nil {
			return nil, err
		}
	}
	return parameters(plan.Parameters, last)
}

// act carries out the action on all objects of the manifest.
func (a *actor) act(ctx context.Context) ([]result, error) {
	text := []byte(a.plan.Manifest)
	if a.plan.ManifestFile != "" {
		f, err := os.Open(a.plan.ManifestFile)
		if err != nil {
			return nil, fmt.Errorf("manifestFrom: %w", err)
		}
		defer f.Close()
		if text, err = io.ReadAll(io.LimitReader(f, maxManifest+1)); err != nil {
			return nil, fmt.Errorf("manifestFrom: %w", err)
		}
		if len(text) > maxManifest {
			return nil, fmt.Errorf("manifestFrom: the manifest has more than %d bytes", maxManifest)
		}
	}
	if a.flags.kind != "" { // flags name the object; the manifest, if any, is a patch
		t, err := a.named(ctx)
		if err != nil {
			return nil, err
		}
		patch, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
		o, err := a.one(ctx, t, json.RawMessage(patch))
		return []result{{t, o}}, err
	}
	objects, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if len(objects) == 0 {
		return nil, errors.New("manifest: has no object")
	}
	var results []result
	for _, o := range objects {
		t, err := a.locate(ctx, o)
		if err != nil {
			return nil, err
		}
		if err := a.own(o); err != nil {
			return nil, err
		}
		body, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		done, err := a.one(ctx, t, body)
		if err != nil {
			return nil, err
		}
		if t.name == "" {
			t.name, _ = metadata(done)["name"].(string)
		}
		results = append(results, result{t, done})
	}
	return results, nil
}

// parse parses the objects of a manifest, including the items of lists.
func parse(text []byte) ([]object, error) {
	var objects []object
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			return nil, err
		}
		items, isList := o["items"].([]any)
		if kind, _ := o["kind"].(string); isList && strings.HasSuffix(kind, "List") {
			for _, item := range items {
				if one, ok := item.(object); ok {
					objects = append(objects, one)
				}
			}
			continue
		}
		if len(o) > 0 {
			objects = append(objects, o)
		}
	}
}

func metadata(o object) object {
	m, _ := o["metadata"].(object)
	if m == nil {
		m = object{}
	}
	return m
}

// own adds the workflow to the owners of an object to be written as a whole.
func (a *actor) own(o object) error {
	if len(a.plan.Owner) == 0 || !slices.Contains([]string{"create", "apply", "replace"}, a.plan.Action) {
		return nil
	}
	var owner any
	if err := json.Unmarshal(a.plan.Owner, &owner); err != nil {
		return err
	}
	m := metadata(o)
	owners, _ := m["ownerReferences"].([]any)
	m["ownerReferences"] = append(owners, owner)
	o["metadata"] = m
	return nil
}

// one carries out the action on one object.
func (a *actor) one(ctx context.Context, t target, body json.RawMessage) (object, error) {
	if t.name == "" && a.plan.Action != "create" {
		return nil, fmt.Errorf("%s: the object has no name", a.plan.Action)
	}
	var out object
	var err error
	path := t.path()
	switch a.plan.Action {
	case "get":
		err = a.client.Do(ctx, http.MethodGet, path, "", nil, &out)
	case "create":
		path = t.collection + a.validation("?")
		err = a.client.Create(ctx, path, body, &out)
	case "apply":
		path += fmt.Sprintf("?fieldManager=lockstep&force=%t%s", !a.flags.noForce, a.validation("&"))
		err = a.client.Do(ctx, http.MethodPatch, path, "application/apply-patch+yaml", body, &out) // JSON is YAML
	case "patch":
		err = a.patch(ctx, path, body, &out)
	case "replace":
		err = a.replace(ctx, path, body, &out)
	case "delete":
		return nil, a.remove(ctx, t)
	default:
		return nil, fmt.Errorf("action: '%s' is not one of get, create, apply, patch, replace, delete", a.plan.Action)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", a.plan.Action, path, err)
	}
	fmt.Fprintf(a.log, "%s %s/%v\n", a.plan.Action, t.collection, metadata(out)["name"])
	return out, nil
}

// validation returns the query that says what becomes of fields that the server does not know.
func (a *actor) validation(before string) string {
	return before + "fieldValidation=" + cmp.Or(a.flags.validation, "Strict")
}

func (a *actor) patch(ctx context.Context, path string, body json.RawMessage, out *object) error {
	const merge = "application/merge-patch+json"
	contentType, known := map[string]string{
		"": "application/strategic-merge-patch+json", "strategic": "application/strategic-merge-patch+json",
		"merge": merge, "json": "application/json-patch+json",
	}[a.plan.MergeStrategy]
	if !known {
		return fmt.Errorf("mergeStrategy: '%s' is not one of strategic, merge, json", a.plan.MergeStrategy)
	}
	err := a.client.Do(ctx, http.MethodPatch, path, contentType, body, out)
	if incluster.Is(err, http.StatusUnsupportedMediaType) && a.plan.MergeStrategy == "" {
		// Custom resources do not support strategic merge patches.
		err = a.client.Do(ctx, http.MethodPatch, path, merge, body, out)
	}
	return err
}

// changeAttempts bounds the attempts to replace or delete an object that others change at the same
// time.
const changeAttempts = 5

// replace writes body over an object. If body has no resource version, it overwrites any version.
func (a *actor) replace(ctx context.Context, path string, body json.RawMessage, out *object) error {
	var o object
	if err := json.Unmarshal(body, &o); err != nil {
		return err
	}
	m := metadata(o)
	version, _ := m["resourceVersion"].(string)
	only := version != ""
	for attempt := 1; ; attempt++ {
		if !only {
			var now object
			if err := a.client.Do(ctx, http.MethodGet, path, "", nil, &now); err != nil {
				return err
			}
			m["resourceVersion"], o["metadata"] = metadata(now)["resourceVersion"], m
		}
		err := a.client.Do(ctx, http.MethodPut, path+a.validation("?"), "application/json", o, out)
		if only || attempt == changeAttempts || !incluster.Is(err, http.StatusConflict) {
			return err
		}
	}
}

// remove deletes an object and waits until it is gone. It deletes and waits for the object that has
// the name now, unless the step may not read it.
func (a *actor) remove(ctx context.Context, t target) error {
	var uid any
	var err error
	for attempt := 1; ; attempt++ {
		var found object
		options := object{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
		err = a.client.Do(ctx, http.MethodGet, t.path(), "", nil, &found)
		if uid = metadata(found)["uid"]; uid != nil {
			options["preconditions"] = object{"uid": uid}
		}
		if err == nil || incluster.Is(err, http.StatusForbidden) {
			err = a.client.Do(ctx, http.MethodDelete, t.path(), "application/json", options, nil)
		}
		// Between the read and the deletion, another client may have replaced the object.
		if attempt == changeAttempts || !incluster.Is(err, http.StatusConflict) {
			break
		}
	}
	if incluster.Is(err, http.StatusNotFound) && a.flags.ignoreNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", t.path(), err)
	}
	fmt.Fprintf(a.log, "delete %s\n", t.path())
	for pause := lookFirst; !a.flags.noWait; pause = min(2*pause, lookLast) {
		var now object
		err := a.client.Do(ctx, http.MethodGet, t.path(), "", nil, &now)
		switch {
		case incluster.Is(err, http.StatusNotFound), err == nil && uid != nil && metadata(now)["uid"] != uid:
			return nil
		case incluster.Is(err, http.StatusForbidden):
			// As kubectl delete does, succeed without knowing the end.
			fmt.Fprintf(a.log, "cannot wait until it is gone: %v\n", err)
			return nil
		case err != nil:
			return fmt.Errorf("get %s: %w", t.path(), err)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// await reads an object until a condition holds, and returns the object. o is its present state.
// If c is nil, await returns o at once.
func (a *actor) await(ctx context.Context, t target, c *conditions, o object) (object, error) {
	if c == nil {
		return o, nil
	}
	for pause := lookFirst; ; pause = min(2*pause, lookLast) {
		done, err := c.hold(o)
		if err != nil || done {
			return o, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
		var now object
		if err := a.client.Do(ctx, http.MethodGet, t.path(), "", nil, &now); err != nil {
			return nil, fmt.Errorf("get %s: %w", t.path(), err)
		}
		o = now
	}
}

// apiResource is an entry of the API server's list of resources.
type apiResource struct {
	Name, SingularName, Kind string
	Namespaced               bool
	ShortNames               []string
}

func (a *actor) resources(ctx context.Context, groupVersion string) (base string, list []apiResource, err error) {
	base = "/apis/" + groupVersion
	if !strings.Contains(groupVersion, "/") {
		base = "/api/" + groupVersion
	}
	var out struct{ Resources []apiResource }
	if err := a.client.Do(ctx, http.MethodGet, base, "", nil, &out); err != nil {
		return "", nil, fmt.Errorf("apiVersion %s: %w", groupVersion, err)
	}
	return base, out.Resources, nil
}

// locate finds the location of an object from its manifest.
func (a *actor) locate(ctx context.Context, o object) (target, error) {
	version, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	if version == "" || kind == "" {
		return target{}, errors.New("manifest: needs apiVersion and kind")
	}
	base, list, err := a.resources(ctx, version)
	if err != nil {
		return target{}, err
	}
	for _, r := range list {
		if r.Kind == kind && !strings.Contains(r.Name, "/") {
			name, _ := metadata(o)["name"].(string)
			namespace, _ := metadata(o)["namespace"].(string)
			return a.at(base, r, namespace, name), nil
		}
	}
	return target{}, fmt.Errorf("the cluster has no kind %s in %s", kind, version)
}

func (a *actor) at(base string, r apiResource, namespace, name string) target {
	if !r.Namespaced {
		return target{base + "/" + r.Name, name}
	}
	for _, n := range []string{a.flags.namespace, a.client.Namespace} {
		if namespace == "" {
			namespace = n
		}
	}
	return target{base + "/namespaces/" + namespace + "/" + r.Name, name}
}

// named finds the object that the flags name, as TYPE NAME, TYPE/NAME or TYPE.GROUP NAME.
func (a *actor) named(ctx context.Context) (target, error) {
	kind, group, _ := strings.Cut(strings.ToLower(a.flags.kind), ".")
	versions := []string{"v1"}
	var groups struct {
		Groups []struct {
			Name             string
			PreferredVersion struct{ GroupVersion string }
		}
	}
	if err := a.client.Do(ctx, http.MethodGet, "/apis", "", nil, &groups); err != nil {
		return target{}, err
	}
	for _, g := range groups.Groups {
		if group == "" || g.Name == group {
			versions = append(versions, g.PreferredVersion.GroupVersion)
		}
	}
	if group != "" {
		versions = versions[1:]
	}
	for _, version := range versions {
		base, list, err := a.resources(ctx, version)
		if err != nil {
			return target{}, err
		}
		for _, r := range list {
			if r.Name == kind || r.SingularName == kind || strings.ToLower(r.Kind) == kind || slices.Contains(r.ShortNames, kind) {
				return a.at(base, r, "", a.flags.name), nil
			}
		}
	}
	return target{}, fmt.Errorf("flags: the cluster has no resource '%s'", a.flags.kind)
}
