package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// What an application writes is written with the rights of who wrote the application: the API server's admission notes them
// in annotations that nobody else can set (config/policies/application-authors.yaml), and the manager's writes impersonate
// them. What the manager itself keeps (records, statuses, finalizers) it writes as itself, and so it removes what a deleted
// application has made: an author who has lost their rights, or is gone, leaves nothing behind. docs/security.md has the whole.

const reapply = "change the application, for instance by an annotation, and it acts with the rights of whoever does"

var (
	errNoAuthor  = errors.New("nobody is recorded as its author, for it is older than the policies that record authors: " + reapply)
	errOldGroups = errors.New("its author's groups are recorded in an older form, in which one group whose name has a comma looks like several: " + reapply)
)

// ErrNotKnown is what Config.Recorded returns until the API server has answered: applications wait meanwhile, and nothing is
// written into their statuses.
var ErrNotKnown = errors.New("it is not known yet whether the API server records who writes applications")

// authorOf returns the identity that an application impersonates, or nil if it acts as the manager. An application that names a service account
// acts as that account in any case.
func (c *Controller) authorOf(o *oam.Application) (*apiwriter.Identity, error) {
	account := o.Annotations[oam.ServiceAccountAnnotation]
	if !c.cfg.ActAsManager {
		if err := c.recorded(); errors.Is(err, ErrNotKnown) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("applications are off: %w", err)
		}
		// Whoever is recorded was allowed to name the service account, for admission checks both at the same time.
		author, err := recordedAuthor(o)
		if err != nil || account == "" {
			return author, err
		}
	}
	if account == "" {
		return nil, nil
	}
	if faults := validation.NameIsDNSSubdomain(account, false); len(faults) > 0 {
		return nil, fmt.Errorf("annotation %s: %q is no service account: %s", oam.ServiceAccountAnnotation, account, strings.Join(faults, "; "))
	}
	return &apiwriter.Identity{User: serviceAccountPrefix + o.Namespace + ":" + account, Groups: serviceAccountGroups(o.Namespace)}, nil
}

const serviceAccountPrefix = "system:serviceaccount:"

func serviceAccountGroups(namespace string) []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}

// recorded says why the API server does not record authors, or nil where it does.
func (c *Controller) recorded() error {
	if c.cfg.Recorded == nil {
		return nil
	}
	return c.cfg.Recorded()
}

// recordedAuthor is the user in the annotations that the API server fills in.
func recordedAuthor(o *oam.Application) (*apiwriter.Identity, error) {
	user := o.Annotations[oam.UsernameAnnotation]
	if user == "" {
		return nil, errNoAuthor
	}
	id := &apiwriter.Identity{User: user}
	joined := o.Annotations[oam.GroupAnnotation]
	if list, ok := o.Annotations[oam.AuthorGroupsAnnotation]; ok {
		if err := json.Unmarshal([]byte(list), &id.Groups); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", oam.AuthorGroupsAnnotation, err)
		}
	} else if namespace, _, ok := strings.Cut(strings.TrimPrefix(user, serviceAccountPrefix), ":"); ok && strings.HasPrefix(user, serviceAccountPrefix) {
		id.Groups = serviceAccountGroups(namespace) // whatever it says: a service account has these
	} else if strings.Contains(joined, ",") {
		return nil, errOldGroups
	} else if joined != "" {
		id.Groups = []string{joined}
	}
	for _, name := range append([]string{user}, id.Groups...) {
		if !fitsHeader(name) {
			return nil, fmt.Errorf("its author %q has a name that cannot be handed over: %q", user, name)
		}
	}
	return id, nil
}

// fitsHeader says whether a name arrives as it is sent in a header of HTTP. Spaces around it would be lost, and " admins" is not
// admins.
func fitsHeader(name string) bool {
	return name != "" && name == strings.TrimSpace(name) && !strings.ContainsFunc(name, unicode.IsControl) && utf8.ValidString(name)
}

// actAs sets the identity that an application impersonates. Read permissions of the previous identity are forgotten.
func (a *app) actAs(id *apiwriter.Identity) {
	if !reflect.DeepEqual(a.as, id) {
		a.reads = nil
		a.forgetAnswers()
	}
	a.as = id
}

// actAsFor finds somebody to take the labels of an application off objects that it shares with others: its author or, where that
// is not known any more, the author of another of those who share the object.
func (c *Controller) actAsFor(a *app, other string) {
	if a.as != nil || c.cfg.ActAsManager {
		return
	}
	namespace, name, _ := strings.Cut(other, "/")
	for _, k := range []types.NamespacedName{a.key, key(namespace, name)} {
		if id, err := c.authorAt(k); err == nil {
			a.as = id
			return
		}
	}
}

// authorAt is authorOf of the application under a key.
func (c *Controller) authorAt(k types.NamespacedName) (*apiwriter.Identity, error) {
	raw, ok := c.applications.Get(k.Namespace, k.Name)
	if !ok {
		return nil, errNoAuthor
	}
	o, err := c.applications.open(raw)
	if err != nil {
		return nil, err
	}
	return c.authorOf(o)
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
