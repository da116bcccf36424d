package kubeclient

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTransientMax(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		err  error
		want time.Duration
	}{
		"a connection that was reset":    {errors.New("connection reset"), transientMax},
		"a server that is starting":      {apierrors.NewServiceUnavailable("starting"), transientMax},
		"too many requests":              {apierrors.NewTooManyRequests("later", 1), transientMax},
		"a version that is too old":      {apierrors.NewResourceExpired("compacted"), transientMax},
		"a request that is forbidden":    {apierrors.NewForbidden(pods, "p", errors.New("no")), ForbiddenMax},
		"a forbidden request, explained": {fmt.Errorf("policy: %w", apierrors.NewForbidden(pods, "p", errors.New("no"))), ForbiddenMax},
		"an object that does not exist":  {apierrors.NewNotFound(pods, "p"), 0},
		"a request without credentials":  {apierrors.NewUnauthorized("who?"), 0},
	} {
		if got := TransientMax(c.err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
