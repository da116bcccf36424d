// Package clusters is a client for administrators of managed clusters: it manages the Secrets that
// package application/clusters reads.
package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Client registers managed clusters in one cluster, the hub.
type Client struct {
	hub    *rest.Config
	core   kubernetes.Interface
	dryRun kubeclient.DryRun
}

// New returns a client. With dryRun it changes nothing. It does not contact the server.
func New(hub *rest.Config, dryRun kubeclient.DryRun) (*Client, error) {
	core, err := kubeclient.Clientset(hub)
	if err != nil {
		return nil, err
	}
	return &Client{hub: hub, core: core, dryRun: dryRun}, nil
}

// Join registers a cluster, or replaces the credentials of a registered one. It keeps existing
// labels that cred does not have.
func (c *Client) Join(ctx context.Context, cred *clusters.Credential) (replaced bool, _ error) {
	secrets := c.core.CoreV1().Secrets(oam.SystemNamespace)
	secret := cred.Secret()
	_, err := secrets.Create(ctx, secret, metav1.CreateOptions{DryRun: c.dryRun.Option()})
	if !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	there, err := secrets.Get(ctx, cred.Name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	if there.Labels[clusters.CredentialTypeLabel] == "" {
		return false, fmt.Errorf("secret %s/%s exists and is not a cluster's; choose another --name",
			oam.SystemNamespace, cred.Name)
	}
	for k, v := range there.Labels {
		if _, given := secret.Labels[k]; !given {
			secret.Labels[k] = v
		}
	}
	secret.UID, secret.ResourceVersion = there.UID, there.ResourceVersion
	_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{DryRun: c.dryRun.Option()})
	return true, err
}

// List returns the managed clusters, sorted by name. problems has an error for each Secret that
// cannot be read.
func (c *Client) List(ctx context.Context) (list []*clusters.Credential, problems []error, _ error) {
	secrets, err := c.core.CoreV1().Secrets(oam.SystemNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: clusters.CredentialTypeLabel})
	if err != nil {
		return nil, nil, err
	}
	for i := range secrets.Items {
		cred, err := clusters.FromSecret(&secrets.Items[i])
		if err != nil {
			problems = append(problems, err)
			continue
		}
		list = append(list, cred)
	}
	slices.SortFunc(list, func(a, b *clusters.Credential) int { return strings.Compare(a.Name, b.Name) })
	return list, problems, nil
}

// Get returns one managed cluster.
func (c *Client) Get(ctx context.Context, name string) (*clusters.Credential, error) {
	secret, err := c.secret(ctx, name)
	if err != nil {
		return nil, err
	}
	return clusters.FromSecret(secret)
}

func (c *Client) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := c.core.CoreV1().Secrets(oam.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && secret.Labels[clusters.CredentialTypeLabel] == "" {
		return nil, fmt.Errorf("there is no managed cluster %s; 'lockstep cluster list' shows those that there are",
			name)
	}
	return secret, err
}

// Label sets labels, and removes the labels whose value is nil.
func (c *Client) Label(ctx context.Context, name string, labels map[string]*string) error {
	if _, err := c.secret(ctx, name); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = c.core.CoreV1().Secrets(oam.SystemNamespace).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{DryRun: c.dryRun.Option()})
	return err
}

// Detach removes the registration of a cluster. Objects that applications have created there stay.
func (c *Client) Detach(ctx context.Context, name string) error {
	secret, err := c.secret(ctx, name)
	if err != nil {
		return err
	}
	return c.core.CoreV1().Secrets(oam.SystemNamespace).Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}, DryRun: c.dryRun.Option()})
}

// Probe checks from this machine whether a cluster can be reached.
func (c *Client) Probe(ctx context.Context, cred *clusters.Credential, gateway clusters.Gateway) error {
	way, err := cred.REST(c.hub, gateway)
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(way)
	if err != nil {
		return err
	}
	return clusters.Probe(ctx, client)
}
