package informer

import (
	"context"
	"errors"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestAnOptionalResourceIsServedLater checks an informer of a resource that the API server does not
// serve at first: it is empty until the resource is there.
func TestAnOptionalResourceIsServedLater(t *testing.T) {
	cfg := localtest.Shared(t).RESTConfig()
	gvr := schema.GroupVersionResource{Group: "later.example.com", Version: "v1", Resource: "things"}
	client, err := kubeclient.Metadata(cfg, gvr.GroupVersion())
	if err != nil {
		t.Fatal(err)
	}
	kind := New(client, gvr.Resource, Options[*metav1.PartialObjectMetadata]{Optional: 50 * time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	added := make(chan string, 1)
	kind.Handle(Handler[*metav1.PartialObjectMetadata]{Added: func(m *metav1.PartialObjectMetadata) { added <- m.Name }})
	go kind.Run(ctx)
	if err := kind.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	if why := kind.Absent(); why != "the API server does not serve it" || len(kind.List()) > 0 {
		t.Fatalf("absent because %q, with %d objects", why, len(kind.List()))
	}
	definitions := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	_, err = definitions.Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: gvr.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gvr.Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: gvr.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = definitions.Delete(context.Background(), gvr.GroupResource().String(), metav1.DeleteOptions{})
	})
	thing := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(), "kind": "Thing", "metadata": map[string]any{"name": "one"},
	}}
	localtest.Eventually(t, "creating a thing", func() error {
		_, err := dynamic.NewForConfigOrDie(cfg).Resource(gvr).Create(ctx, thing, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return err
	})
	if name := <-added; name != "one" {
		t.Errorf("%s was added", name)
	}
	localtest.Eventually(t, "the resource is there", func() error {
		if why := kind.Absent(); why != "" {
			return errors.New(why)
		}
		return nil
	})
}
