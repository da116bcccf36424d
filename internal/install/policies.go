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

// PolicyDiffers returns the path of the first difference between the spec of an admission policy, or of a binding, as it is in a
// cluster and as it is to be, or nothing. What is there may have the API server's defaults beside it and nothing else: a selector
// or a condition would leave something out.
func PolicyDiffers(there, want map[string]any) string {
	return differs("spec", there["spec"], want["spec"])
}

// policyDefaults are what the API server fills in.
var policyDefaults = map[string]any{
	"matchPolicy": "Equivalent", "namespaceSelector": map[string]any{}, "objectSelector": map[string]any{}, "scope": "*",
}

// differs is the path of the first difference between what is there and what is wanted, or empty. What is there may have the
// defaults beside it, and nothing else: a selector would leave out some namespaces.
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

// RecordsAuthors reports whether the API server can record who wrote an application, which Kubernetes from 1.36 on can.
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

// needsMutatingPolicies is true of these policies, and of the one that refuses applications whose authors they did not
// fill in.
func needsMutatingPolicies(o *unstructured.Unstructured) bool {
	return strings.HasPrefix(o.GetKind(), "MutatingAdmissionPolicy") || o.GetName() == config.AuthorsPolicy
}
