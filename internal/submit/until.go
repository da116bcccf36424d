package submit

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Until watches one object. It calls done with the object's present state and after every change,
// and returns when done returns true or an error, or when ctx is done. It returns gone if the
// object does not exist or is deleted meanwhile, and the server's error if the caller may not list or
// watch it: an informer alone would retry for ever.
func Until[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, client cache.Getter, resource, namespace, name string, gone error,
	done func(P) (bool, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	check := func(err error) error {
		if apierrors.IsForbidden(err) {
			cancel(err)
		}
		return err
	}
	source := cache.NewListWatchFromClient(client, resource, namespace, fields.OneTermEqualSelector("metadata.name", name))
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := source.ListWithContext(ctx, options)
			return list, check(err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := source.WatchWithContext(ctx, options)
			return w, check(err)
		},
	}
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
		return context.Cause(ctx)
	}
	return err
}
