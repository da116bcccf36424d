package submit

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Until watches one object. It calls done with the object's present state and after every change,
// and returns when done returns true or an error, or when ctx is done. It returns gone if the
// object does not exist or is deleted meanwhile.
func Until[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, client cache.Getter, resource, namespace, name string, gone error,
	done func(P) (bool, error)) error {
	lw := cache.NewListWatchFromClient(client, resource, namespace, fields.OneTermEqualSelector("metadata.name", name))
	exists := func(store cache.Store) (bool, error) {
		if len(store.ListKeys()) == 0 {
			return false, gone
		}
		return false, nil
	}
	_, err := watchtools.UntilWithSync(ctx, lw, P(new(T)), exists, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(P)
		switch {
		case e.Type == watch.Deleted:
			return false, gone
		case !ok:
			return false, nil
		}
		return done(o)
	})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
