package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// configTemplate is a template of configs: a ConfigMap.
type configTemplate struct {
	namespace, name  string
	text             string // CUE
	scope, sensitive string
}

// config answers with the Secret and the other objects of a config that has a template.
func (x *action) config() (render.Answer, bool, error) {
	t, known, err := readTemplate(x, text(x.Params, "template"))
	if err != nil || !known {
		return render.Answer{}, false, err
	}
	request, err := t.request(x.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	answer, err := render.Files(x.r.Evaluators.Of(x.a.Key), request)
	if errors.Is(err, plan.ErrNotYet) {
		return render.Answer{}, false, nil
	}
	if err != nil {
		return render.Answer{}, false, fmt.Errorf("config template %s: %w", t.name, err)
	}
	secret, others, err := t.objects(answer.Fields["template"], x.Params)
	if err != nil {
		return render.Answer{}, false, fmt.Errorf("config template %s: %w", t.name, err)
	}
	return render.Answer{Returns: map[string]any{"secret": secret, "objects": others}}, true, nil
}

// readTemplate reads a template: NAME of the system namespace, whose templates are for everyone as
// its definitions are, or NAMESPACE/NAME.
func readTemplate(x *action, called string) (*configTemplate, bool, error) {
	t := &configTemplate{namespace: oam.SystemNamespace, name: called}
	if namespace, name, found := strings.Cut(called, "/"); found {
		t.namespace, t.name = namespace, name
	}
	if t.namespace != oam.SystemNamespace {
		if err := x.r.MayReachNamespace(x.a, t.namespace, true); err != nil {
			return nil, false, err
		}
	}
	local := x.r.Targets.Local
	ref := plan.Ref{GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespace: t.namespace, Name: oam.ConfigTemplatePrefix + t.name}
	there, known, err := x.r.Watches.Get(local, ref, x.a.Key, false)
	if err != nil || !known {
		return nil, false, err
	}
	if there == nil {
		return nil, false, fmt.Errorf("there is no config template %s: %s not found", called, ref)
	}
	if t.namespace != oam.SystemNamespace {
		if err := x.r.MayRead(x.a, local, ref); err != nil {
			return nil, false, err
		}
	}
	u := unstructured.Unstructured{Object: objects.Map(there)}
	if u.GetLabels()[oam.ConfigCatalogLabel] != oam.ConfigCatalog {
		return nil, false, fmt.Errorf("%s is no config template: it has no label %s=%s", ref, oam.ConfigCatalogLabel, oam.ConfigCatalog)
	}
	t.text, _, _ = unstructured.NestedString(u.Object, "data", "template")
	t.scope, t.sensitive = u.GetLabels()[oam.ConfigScopeLabel], u.GetAnnotations()[oam.ConfigSensitiveAnnotation]
	return t, true, nil
}

// request returns the evaluation of the template with the properties of a config.
func (t *configTemplate) request(params map[string]any) (*render.FilesRequest, error) {
	config := params["config"]
	if config == nil {
		config = map[string]any{}
	}
	context, err := json.Marshal(map[string]any{"name": params["name"], "namespace": params["namespace"]})
	if err != nil {
		return nil, err
	}
	properties, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	given := fmt.Sprintf("context: %s\ntemplate: parameter: %s\n", context, properties)
	return &render.FilesRequest{
		Sources: []render.Source{{Name: t.name, Text: t.text}, {Name: "properties", Text: given}}, Fields: []string{"template"},
	}, nil
}

// objects returns the Secret of a config, and the other objects that its template makes.
func (t *configTemplate) objects(evaluated []byte, params map[string]any) (map[string]any, []any, error) {
	var made struct {
		Output  map[string]any            `json:"output"`
		Outputs map[string]map[string]any `json:"outputs"`
		// Validation sends requests, and Nacos writes the config to a server.
		Validation any `json:"validation"`
		Nacos      any `json:"nacos"`
	}
	if err := kjson.Unmarshal(evaluated, &made); err != nil {
		return nil, nil, err
	}
	if made.Validation != nil || made.Nacos != nil {
		return nil, nil, errors.New("template.validation and template.nacos are not supported")
	}
	secret := &unstructured.Unstructured{Object: made.Output}
	if secret.Object == nil {
		secret.Object = map[string]any{}
	}
	if kind := secret.GetKind(); kind != "" && kind != "Secret" {
		return nil, nil, fmt.Errorf("template.output is a %s; it must be a Secret", kind)
	}
	secret.SetAPIVersion("v1")
	secret.SetKind("Secret")
	if secret.GetName() == "" {
		secret.SetName(text(params, "name"))
	}
	secret.SetNamespace(text(params, "namespace"))
	labels := map[string]string{}
	maps.Copy(labels, secret.GetLabels())
	labels[oam.ConfigCatalogLabel], labels[oam.ConfigTypeLabel], labels[oam.ConfigScopeLabel] = oam.ConfigCatalog, t.name, t.scope
	secret.SetLabels(labels)
	annotations := map[string]string{}
	maps.Copy(annotations, secret.GetAnnotations())
	annotations[oam.ConfigSensitiveAnnotation], annotations[oam.ConfigTemplateNamespaceAnnotation] = t.sensitive, t.namespace
	secret.SetAnnotations(annotations)
	if kind, _ := secret.Object["type"].(string); kind == "" {
		secret.Object["type"] = "/" + t.name
	}
	values, _ := secret.Object["stringData"].(map[string]any)
	values = maps.Clone(values)
	if values == nil {
		values = map[string]any{}
	}
	var err error
	put := func(key string, v any) {
		data, failed := json.Marshal(v)
		values[key], err = string(data), errors.Join(err, failed)
	}
	config := params["config"]
	if config == nil {
		config = map[string]any{}
	}
	put("input-properties", config)
	others, refs := []any{}, []map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(made.Outputs)) {
		u := &unstructured.Unstructured{Object: made.Outputs[name]}
		if u.GetKind() == "" || u.GetName() == "" {
			return nil, nil, fmt.Errorf("template.outputs.%s has no kind or no name", name)
		}
		others = append(others, u.Object)
		refs = append(refs, map[string]string{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "namespace": u.GetNamespace(), "name": u.GetName()})
	}
	if len(refs) > 0 {
		put("objects-reference", refs)
	}
	secret.Object["stringData"] = values
	return secret.Object, others, err
}
