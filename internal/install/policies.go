package install

import (
	"context"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/config"
)

// PolicyDiffers compares the specs of an existing and a wanted admission policy, or binding. It
// returns the path of the first difference, or "". The existing spec may additionally contain the
// API server's defaults and nothing else, because an additional selector or condition would exclude
// requests.
func PolicyDiffers(there, want map[string]any) string {
	return differs("spec", there["spec"], want["spec"])
}

// policyDefaults are the defaults that the API server fills in.
var policyDefaults = map[string]any{
	"matchPolicy": "Equivalent", "namespaceSelector": map[string]any{}, "objectSelector": map[string]any{}, "scope": "*",
}

// differs returns the path of the first difference between an existing and a wanted value, or "".
// The existing value may additionally contain the defaults and nothing else, because a selector
// would exclude some namespaces.
func differs(path string, there, want any) string {
	switch want := want.(type) {
	case map[string]any:
		there, ok := there.(map[string]any)
		if !ok {
			return path
		}
		for k, v := range there {
			if _, known := want[k]; !known && !reflect.DeepEqual(v, policyDefaults[k]) {
				return path + "." + k
			}
		}
		for k, v := range want {
			if d := differs(path+"."+k, there[k], v); d != "" {
				return d
			}
		}
		return ""
	case []any:
		there, ok := there.([]any)
		if !ok || !slices.EqualFunc(there, want, func(a, b any) bool { return differs(path, a, b) == "" }) {
			return path
		}
		return ""
	}
	if there != want {
		return path
	}
	return ""
}

// RecordsAuthors reports whether the API server can record who wrote an application, which needs
// Kubernetes 1.36 or later.
func RecordsAuthors(ctx context.Context, cfg *rest.Config) (bool, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return false, err
	}
	return servesMutatingPolicies(ctx, client)
}

var mutatingPolicies = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"}

func servesMutatingPolicies(ctx context.Context, client dynamic.Interface) (bool, error) {
	_, err := client.Resource(mutatingPolicies).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// needsMutatingPolicies reports whether the object is a mutating admission policy or its binding,
// or belongs to the policy that rejects applications without the author that those policies fill
// in.
func needsMutatingPolicies(o *unstructured.Unstructured) bool {
	return strings.HasPrefix(o.GetKind(), "MutatingAdmissionPolicy") || o.GetName() == config.AuthorsPolicy
}
