package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Among tenants that do not trust each other, what an application writes is written with the rights of who wrote the
// application: the API server's admission notes them in annotations that nobody else can set
// (config/policies/application-authors.yaml), and the manager's writes impersonate them. What the manager itself keeps
// (records, statuses, finalizers) it writes as itself, and so it deletes what is recorded: an author who has lost their
// rights, or is gone, leaves nothing behind.

var errNoAuthor = errors.New("its author is not recorded, and with --multi-tenant applications act with the rights of their authors: write it once more")

// authorOf is whom an application acts as, or nil when it acts as the manager.
func (c *Controller) authorOf(o *oam.Application) (*apiwriter.Identity, error) {
	if !c.cfg.MultiTenant {
		return nil, nil
	}
	if account := o.Annotations[oam.ServiceAccountAnnotation]; account != "" {
		return &apiwriter.Identity{User: "system:serviceaccount:" + o.Namespace + ":" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + o.Namespace}}, nil
	}
	user := o.Annotations[oam.UsernameAnnotation]
	if user == "" {
		return nil, errNoAuthor
	}
	id := &apiwriter.Identity{User: user}
	if groups := o.Annotations[oam.GroupAnnotation]; groups != "" {
		id.Groups = strings.Split(groups, ",")
	}
	return id, nil
}

// mayRead says whether the application's author may see an object that somebody else has made. It is asked once for each
// plan: what an object says may get into the application's status.
func (c *Controller) mayRead(ctx context.Context, a *app, t *target, ref plan.Ref) error {
	if a.as == nil {
		return nil
	}
	if err, known := a.reads[ref]; known {
		return err
	}
	err := t.readAs(ctx, ref, a.as)
	if a.reads == nil {
		a.reads = map[plan.Ref]error{}
	}
	if !apierrors.IsNotFound(err) { // it may come
		a.reads[ref] = err
	}
	return err
}

// reader reads as somebody, or as the manager for nil.
func (t *target) reader(as *apiwriter.Identity) (dynamic.Interface, error) {
	if as == nil {
		return t.live.client, nil
	}
	cfg := rest.CopyConfig(t.rest)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: as.User, Groups: as.Groups}
	return dynamic.NewForConfig(cfg)
}

func (t *target) readAs(ctx context.Context, ref plan.Ref, as *apiwriter.Identity) error {
	client, err := t.reader(as)
	if err != nil {
		return err
	}
	m, err := t.kinds.mapping(ref.GVK)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var r dynamic.ResourceInterface = client.Resource(m.Resource)
	if ref.Namespace != "" {
		r = client.Resource(m.Resource).Namespace(ref.Namespace)
	}
	if _, err := r.Get(ctx, ref.Name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("%s: %w", ref, err)
	}
	return nil
}
