package deploy

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/author"
)

// actAsFor sets the identity for removing an Application's labels from objects that it shares: its
// own author or, if that author is no longer known, the author of another Application that shares
// the object. An Application that names a service account acts as that account, also if others act as
// the manager.
func (d *Remover) actAsFor(a *State, other string) {
	if a.As != nil {
		return
	}
	namespace, name, _ := strings.Cut(other, "/")
	for _, k := range []types.NamespacedName{a.Key, {Namespace: namespace, Name: name}} {
		if id, err := d.authorAt(k); err == nil {
			a.As = id
			return
		}
	}
}

// authorAt returns the identity that the Application with a key impersonates.
func (d *Remover) authorAt(k types.NamespacedName) (*apiwriter.Identity, error) {
	raw, ok := d.Applications.Get(k.Namespace, k.Name)
	if !ok {
		return nil, author.ErrNoAuthor
	}
	o, err := d.Applications.Unpack(raw)
	if err != nil {
		return nil, err
	}
	return d.Authors.Of(o)
}
