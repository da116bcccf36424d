package localcluster

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// applyPolicies creates the roles that the local components need beyond those of a fresh API
// server.
func (c *Cluster) applyPolicies(ctx context.Context, client kubernetes.Interface) error {
	if !c.config.WithoutKwok {
		if err := applyNodesRole(ctx, client); err != nil {
			return fmt.Errorf("role of %s: %w", NodesUser, err)
		}
	}
	if len(c.config.Programs) > 0 {
		if err := applyProgramsRole(ctx, client); err != nil {
			return fmt.Errorf("role of %s: %w", ProgramsUser, err)
		}
	}
	if c.config.RealNodes > 0 {
		if err := applyNetworkRole(ctx, client); err != nil {
			return fmt.Errorf("role of %s: %w", NetworkUser, err)
		}
	}
	return nil
}

// applyNodesRole allows KWOK to do what kubelets do, for all nodes.
func applyNodesRole(ctx context.Context, client kubernetes.Interface) error {
	return applyRole(ctx, client, NodesUser, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"update"}},
		{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
			Verbs: []string{"get", "list", "watch", "create", "patch", "update"}},
	})
}

// applyNetworkRole allows the real nodes' network to read the objects behind DNS names, and to
// delete nodes.
func applyNetworkRole(ctx context.Context, client kubernetes.Interface) error {
	return applyRole(ctx, client, NetworkUser, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"delete"}},
	})
}

// applyRole grants a user rights in the whole cluster.
func applyRole(ctx context.Context, client kubernetes.Interface, user string, rules []rbacv1.PolicyRule) error {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
