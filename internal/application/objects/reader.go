package objects

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Reader returns a client that impersonates as, or the manager's own client if as is nil.
func (t *Target) Reader(as *apiwriter.Identity) (dynamic.Interface, error) {
	if as == nil {
		return t.Objects.client, nil
	}
	cfg := rest.CopyConfig(t.rest)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: as.User, Groups: as.Groups}
	return dynamic.NewForConfig(cfg)
}

// ReadAs returns nil if as may get an object, and otherwise the error of the request.
func (t *Target) ReadAs(ctx context.Context, ref plan.Ref, as *apiwriter.Identity) error {
	client, err := t.Reader(as)
	if err != nil {
		return err
	}
	m, err := t.Kinds.Mapping(ref.GVK)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	if _, err := client.Resource(m.Resource).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("%s: %w", ref, err)
	}
	return nil
}

// SecretValue returns one value of a Secret in namespace, read with the rights of as.
func (t *Target) SecretValue(ctx context.Context, as *apiwriter.Identity, namespace, name, key string) (string, error) {
	m, err := t.Kinds.Mapping(schema.GroupVersionKind{Version: "v1", Kind: "Secret"})
	if err != nil {
		return "", err
	}
	client, err := t.Reader(as)
	if err != nil {
		return "", err
	}
	u, err := client.Resource(m.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	data, err := plan.SecretData(u.Object)
	if err != nil {
		return "", err
	}
	value, ok := data[key]
	if !ok {
		return "", fmt.Errorf("secret %s has no key %s", name, key)
	}
	return strings.TrimSpace(string(value)), nil
}
