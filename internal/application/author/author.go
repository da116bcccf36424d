package author

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/validation"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// An Application's writes impersonate its author. Admission in the API server records the author in
// annotations that nobody else can set (config/policies/application-authors.yaml). The manager
// writes its own bookkeeping (trackers, statuses, finalizers) as itself. It also removes a deleted
// Application's objects as itself, so that nothing stays behind if the author has lost their rights
// or no longer exists. docs/security.md has the details.

const reapply = "change the application, for instance by an annotation, and it acts with the rights of whoever does"

var (
	// ErrNoAuthor is the error for an Application that names no author.
	ErrNoAuthor  = errors.New("nobody is recorded as its author, for it is older than the policies that record authors: " + reapply)
	errOldGroups = errors.New("its author's groups are recorded in an older form, in which one group whose name has a comma looks like several: " + reapply)
)

// ErrNotKnown is the error that Finder.Recorded returns until the API server has answered. Until
// then Applications wait, and their statuses are not written.
var ErrNotKnown = errors.New("it is not known yet whether the API server records who writes applications")

// Finder finds the identities that Applications impersonate.
type Finder struct {
	// ActAsManager makes Applications act with the manager's rights.
	ActAsManager bool
	// Recorded returns nil if the API server records authors, or the reason why it does not. If
	// Recorded is nil, authors are recorded.
	Recorded func() error
}

// Of returns the identity that an Application impersonates, or nil if the Application acts as
// the manager. An Application that names a service account acts as that account in any case.
func (x *Finder) Of(o *oam.Application) (*apiwriter.Identity, error) {
	account := o.Annotations[oam.ServiceAccountAnnotation]
	if !x.ActAsManager {
		if x.Recorded != nil {
			if err := x.Recorded(); errors.Is(err, ErrNotKnown) {
				return nil, err
			} else if err != nil {
				return nil, fmt.Errorf("applications are off: %w", err)
			}
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

// Author returns the identity of whoever has written an Application, by what the API server has
// recorded. It does not depend on what the Application acts as.
func (x *Finder) Author(o *oam.Application) (*apiwriter.Identity, error) { return recordedAuthor(o) }

const serviceAccountPrefix = "system:serviceaccount:"

func serviceAccountGroups(namespace string) []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}

// recordedAuthor returns the identity in the annotations that the API server sets.
func recordedAuthor(o *oam.Application) (*apiwriter.Identity, error) {
	user := o.Annotations[oam.UsernameAnnotation]
	if user == "" {
		return nil, ErrNoAuthor
	}
	id := &apiwriter.Identity{User: user}
	joined := o.Annotations[oam.GroupAnnotation]
	if list, ok := o.Annotations[oam.AuthorGroupsAnnotation]; ok {
		if err := json.Unmarshal([]byte(list), &id.Groups); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", oam.AuthorGroupsAnnotation, err)
		}
	} else if namespace, _, ok := strings.Cut(strings.TrimPrefix(user, serviceAccountPrefix), ":"); ok && strings.HasPrefix(user, serviceAccountPrefix) {
		// A service account always has these groups, whatever the annotation says.
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
