package controller

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
)

// actAsFor finds an identity for removing an Application's labels from objects that it shares: its
// own author or, if that author is not known any more, the author of another Application that
// shares the object.
func (d *remover) actAsFor(a *state, other string) {
	if a.as != nil || d.authors.actAsManager {
		return
	}
	namespace, name, _ := strings.Cut(other, "/")
	for _, k := range []types.NamespacedName{a.key, {Namespace: namespace, Name: name}} {
		if id, err := d.authorAt(k); err == nil {
			a.as = id
			return
		}
	}
}

// authorAt returns the identity that the Application under a key impersonates.
func (d *remover) authorAt(k types.NamespacedName) (*apiwriter.Identity, error) {
	raw, ok := d.applications.Get(k.Namespace, k.Name)
	if !ok {
		return nil, errNoAuthor
	}
	o, err := d.applications.open(raw)
	if err != nil {
		return nil, err
	}
	return d.authors.of(o)
}
