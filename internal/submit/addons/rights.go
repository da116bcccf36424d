package addons

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// manager is the account of managers, and its groups.
const manager = "system:serviceaccount:lockstep-system:lockstep-manager"

var managerGroups = []string{"system:serviceaccounts", "system:serviceaccounts:lockstep-system", "system:authenticated"}

// What a manager does with the objects of applications by its own rights, and what it does by those of
// the author.
var (
	managersVerbs = []string{"get", "list", "watch", "delete"}
	authorsVerbs  = []string{"create", "patch", "delete"}
)

// Made is a kind of object that an addon makes in a namespace, which is empty for kinds without one.
type Made struct {
	Kind      schema.GroupVersionKind
	Namespace string
	Objects   int
	// Managed is set if the manager watches and deletes the objects. It does not for what the user
	// applies, which is deleted with the application by its owner.
	Managed bool
}

// Right says which rights are missing to make the objects of a kind.
type Right struct {
	Made
	// Resource is empty if the API server does not serve the kind and the addon does not define it.
	Resource schema.GroupResource
	// You and Manager are the verbs that the user and the manager may not use.
	You, Manager []string
	// Unasked is set if the user may not ask what the manager may do.
	Unasked bool
}

// Resource is a resource of the API server.
type Resource struct {
	schema.GroupResource
	Namespaced bool
}

// Missing reports whether a right is missing.
func (r *Right) Missing() bool { return len(r.You)+len(r.Manager) > 0 }

// Rights returns which rights are missing to make objects. The applications act with the rights of their
// author, the user, and the manager watches and deletes what they make. defined has the resources of the
// kinds that the addons define themselves.
func (c *Client) Rights(ctx context.Context, made []Made, defined map[schema.GroupKind]Resource) ([]Right, error) {
	type place struct {
		kind      schema.GroupVersionKind
		namespace string
	}
	at := map[place]int{}
	var out []Right
	managers := map[schema.GroupResource]Right{}
	for _, m := range made {
		resource, ok := defined[m.Kind.GroupKind()]
		if !ok {
			mapping, err := c.mapper.RESTMapping(m.Kind.GroupKind(), m.Kind.Version)
			if err == nil {
				resource = Resource{mapping.Resource.GroupResource(), mapping.Scope.Name() == meta.RESTScopeNameNamespace}
			} else if !meta.IsNoMatchError(err) {
				return nil, err
			}
		}
		if resource.Resource != "" && !resource.Namespaced {
			m.Namespace = ""
		}
		if i, known := at[place{m.Kind, m.Namespace}]; known {
			out[i].Objects += m.Objects
			out[i].Managed = out[i].Managed || m.Managed
			continue
		}
		at[place{m.Kind, m.Namespace}] = len(out)
		r := Right{Made: m, Resource: resource.GroupResource}
		if resource.Resource == "" {
			out = append(out, r)
			continue
		}
		for _, verb := range authorsVerbs {
			if may, err := c.may(ctx, verb, r.Resource, m.Namespace); err != nil {
				return nil, err
			} else if !may {
				r.You = append(r.You, verb)
			}
		}
		out = append(out, r)
	}
	for i := range out {
		r := &out[i]
		if !r.Managed || r.Resource.Resource == "" {
			continue
		}
		lacks, known := managers[r.Resource]
		if !known {
			var err error
			if lacks.Manager, err = c.managerLacks(ctx, r.Resource); apierrors.IsForbidden(err) {
				lacks.Unasked = true
			} else if err != nil {
				return nil, err
			}
			managers[r.Resource] = lacks
		}
		r.Manager, r.Unasked = lacks.Manager, lacks.Unasked
	}
	slices.SortFunc(out, func(a, b Right) int {
		return strings.Compare(a.Kind.String()+a.Namespace, b.Kind.String()+b.Namespace)
	})
	return out, nil
}

// may reports whether the user may do something.
func (c *Client) may(ctx context.Context, verb string, resource schema.GroupResource, namespace string) (bool, error) {
	review, err := c.core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: resource.Group, Resource: resource.Resource, Namespace: namespace,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// managerLacks returns the verbs that the manager may not use for a resource in every namespace.
func (c *Client) managerLacks(ctx context.Context, resource schema.GroupResource) ([]string, error) {
	var out []string
	for _, verb := range managersVerbs {
		review, err := c.core.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: manager, Groups: managerGroups, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: resource.Group, Resource: resource.Resource,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if !review.Status.Allowed {
			out = append(out, verb)
		}
	}
	return out, nil
}
