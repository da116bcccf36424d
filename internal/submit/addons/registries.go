package addons

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/addon"
)

// The ConfigMap with the list of registries, as KubeVela writes it, and the Secrets with their
// passwords.
const (
	registriesName  = "vela-addon-registry"
	registriesKey   = "registries"
	passwordsPrefix = "addon-registry-"
	passwordKey     = "token"
)

// Registries returns the registries, sorted by name, without passwords that are in Secrets.
func (c *Client) Registries(ctx context.Context) ([]addon.Registry, error) {
	_, known, err := c.registries(ctx)
	var out []addon.Registry
	for _, r := range known {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b addon.Registry) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// WithPassword reads the password of a registry, if there is one.
func (c *Client) WithPassword(ctx context.Context, r *addon.Registry) error {
	name := passwordsPrefix + r.Name
	if g := r.Repository(); g != nil && g.TokenSecretRef != "" {
		name = g.TokenSecretRef
	}
	secret, err := c.core.CoreV1().Secrets(oam.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the password of the registry %s: %w", r.Name, err)
	}
	if password := secret.Data[passwordKey]; len(password) > 0 {
		r.SetPassword(string(password))
	}
	return nil
}

// registries returns the ConfigMap of registries, or nil if there is none, and what it lists.
func (c *Client) registries(ctx context.Context) (*corev1.ConfigMap, map[string]addon.Registry, error) {
	known := map[string]addon.Registry{}
	list, err := c.core.CoreV1().ConfigMaps(oam.SystemNamespace).Get(ctx, registriesName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, known, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if text := list.Data[registriesKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &known); err != nil {
			return nil, nil, fmt.Errorf("configmap %s/%s: %s: %w", oam.SystemNamespace, registriesName, registriesKey, err)
		}
	}
	return list, known, nil
}

// AddRegistry adds a registry to the list, or replaces the one of its name. Its password goes to a
// Secret.
func (c *Client) AddRegistry(ctx context.Context, r addon.Registry) (replaced bool, _ error) {
	if password := r.Password(); password != "" {
		if err := c.keepPassword(ctx, &r, password); err != nil {
			return false, err
		}
	}
	err := c.change(ctx, func(known map[string]addon.Registry) error {
		_, replaced = known[r.Name]
		known[r.Name] = r
		return nil
	})
	return replaced, err
}

// keepPassword writes the Secret with the password of a registry, and removes it from r.
func (c *Client) keepPassword(ctx context.Context, r *addon.Registry, password string) error {
	r.SetPassword("")
	if r.Git != nil {
		r.Git.TokenSecretRef = passwordsPrefix + r.Name
	}
	secrets := c.core.CoreV1().Secrets(oam.SystemNamespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: passwordsPrefix + r.Name}, Data: map[string][]byte{passwordKey: []byte(password)}}
	_, err := secrets.Create(ctx, secret, metav1.CreateOptions{DryRun: c.dryRun.Option()})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{DryRun: c.dryRun.Option()})
	}
	return err
}

// DeleteRegistry removes a registry from the list, and its password.
func (c *Client) DeleteRegistry(ctx context.Context, name string) error {
	err := c.change(ctx, func(known map[string]addon.Registry) error {
		if _, ok := known[name]; !ok {
			return fmt.Errorf("there is no registry %s; 'lockstep addon registry list' shows those that there are", name)
		}
		delete(known, name)
		return nil
	})
	if err != nil {
		return err
	}
	err = c.core.CoreV1().Secrets(oam.SystemNamespace).Delete(ctx, passwordsPrefix+name, metav1.DeleteOptions{DryRun: c.dryRun.Option()})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// change changes the list of registries.
func (c *Client) change(ctx context.Context, do func(known map[string]addon.Registry) error) error {
	lists := c.core.CoreV1().ConfigMaps(oam.SystemNamespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		list, known, err := c.registries(ctx)
		if err == nil {
			err = do(known)
		}
		if err != nil {
			return err
		}
		data, err := json.Marshal(known)
		if err != nil {
			return err
		}
		if list == nil {
			_, err = lists.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: registriesName}, Data: map[string]string{registriesKey: string(data)}},
				metav1.CreateOptions{DryRun: c.dryRun.Option()})
			return err
		}
		if list.Data == nil {
			list.Data = map[string]string{}
		}
		list.Data[registriesKey] = string(data)
		_, err = lists.Update(ctx, list, metav1.UpdateOptions{DryRun: c.dryRun.Option()})
		return err
	})
}
