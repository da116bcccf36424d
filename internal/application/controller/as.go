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

// An Application's writes are made with the rights of its author. The API server's admission
// records the author in annotations that nobody else can set
// (config/policies/application-authors.yaml), and the manager's writes impersonate the author. The
// manager writes its own bookkeeping (records, statuses, finalizers) as itself. It also removes a
// deleted Application's objects as itself, so that an author who has lost their rights, or does not
// exist any more, leaves nothing behind. docs/security.md describes the whole.

const reapply = "change the application, for instance by an annotation, and it acts with the rights of whoever does"

var (
	errNoAuthor  = errors.New("nobody is recorded as its author, for it is older than the policies that record authors: " + reapply)
	errOldGroups = errors.New("its author's groups are recorded in an older form, in which one group whose name has a comma looks like several: " + reapply)
)

// ErrNotKnown is the error that Config.Recorded returns until the API server has answered. Until
// then Applications wait, and their statuses are not written.
var ErrNotKnown = errors.New("it is not known yet whether the API server records who writes applications")

// authorOf returns the identity that an Application impersonates, or nil if the Application acts as
// the manager. An Application that names a service account acts as that account in any case.
func (c *Controller) authorOf(o *oam.Application) (*apiwriter.Identity, error) {
	account := o.Annotations[oam.ServiceAccountAnnotation]
	if !c.cfg.ActAsManager {
		if err := c.recorded(); errors.Is(err, ErrNotKnown) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("applications are off: %w", err)
		}
		// The recorded author was allowed to name the service account: admission checks both at the
		// same time.
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

// recorded returns nil if the API server records authors, or the reason why it does not.
func (c *Controller) recorded() error {
	if c.cfg.Recorded == nil {
		return nil
	}
	return c.cfg.Recorded()
}

// recordedAuthor returns the identity in the annotations that the API server sets.
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
		// Whatever the annotation says: a service account has these.
		id.Groups = serviceAccountGroups(namespace)
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

// fitsHeader reports whether a name arrives unchanged in an HTTP header. Surrounding spaces would
// be lost, and " admins" is another group than "admins".
func fitsHeader(name string) bool {
	return name != "" && name == strings.TrimSpace(name) && !strings.ContainsFunc(name, unicode.IsControl) && utf8.ValidString(name)
}

// actAs sets the identity that an Application impersonates. If the identity changes, what the
// previous one was allowed to read is forgotten.
func (a *app) actAs(id *apiwriter.Identity) {
	if !reflect.DeepEqual(a.as, id) {
		a.reads = nil
		a.forgetAnswers()
	}
	a.as = id
}

// actAsFor finds an identity for removing an Application's labels from objects that it shares: its
// own author or, if that author is not known any more, the author of another Application that
// shares the object.
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

// authorAt returns the identity that the Application under a key impersonates.
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

// mayRead returns nil if the Application's author may read an object that has another owner. It
// asks once for each plan. The check is needed because the object's content may get into the
// Application's status.
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
	if !apierrors.IsNotFound(err) { // it may be created
		a.reads[ref] = err
	}
	return err
}

// reader returns a client that impersonates as, or the manager's own client if as is nil.
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
