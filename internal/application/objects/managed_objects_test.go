package objects

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/kubeclient"
)

// TestTroublesThatPassAreNotSaid checks that an Application learns that objects cannot be watched
// only if the error is permanent or has lasted longer than a temporary one does. Otherwise a
// manager that starts while the server is slow would write the error into each status, and correct
// each status soon after.
func TestTroublesThatPassAreNotSaid(t *testing.T) {
	answer := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: http.StatusText(int(code))}}
	}
	type attempt struct {
		after time.Duration // after the previous attempt
		err   error
	}
	busy, cut, forbidden := answer(http.StatusServiceUnavailable), error(io.ErrUnexpectedEOF), answer(http.StatusForbidden)
	missing := answer(http.StatusNotFound)
	passingMax, forbiddenMax := kubeclient.TransientMax(cut), kubeclient.ForbiddenMax
	short := passingMax / 4
	for name, c := range map[string]struct {
		attempts []attempt
		want     error // the final error
		told     int
	}{
		"a server that is busy":              {[]attempt{{0, busy}, {short, busy}, {short, busy}}, nil, 0},
		"a server that asks for less":        {[]attempt{{0, answer(http.StatusTooManyRequests)}, {short, answer(http.StatusTooManyRequests)}}, nil, 0},
		"a version that is too old":          {[]attempt{{0, answer(http.StatusGone)}, {short, answer(http.StatusGone)}}, nil, 0},
		"a connection that is cut":           {[]attempt{{0, cut}, {short, cut}}, nil, 0},
		"until just before its time":         {[]attempt{{0, cut}, {passingMax - 1, cut}}, nil, 0},
		"for long":                           {[]attempt{{0, cut}, {short, busy}, {passingMax - short, busy}}, busy, 1},
		"for long, and on":                   {[]attempt{{0, cut}, {passingMax, cut}, {passingMax, cut}}, cut, 1},
		"for long, and over":                 {[]attempt{{0, cut}, {passingMax, cut}, {short, nil}}, nil, 1},
		"two that pass, with a success":      {[]attempt{{0, cut}, {short, nil}, {passingMax, cut}, {passingMax - 1, cut}}, nil, 0},
		"what may not be read":               {[]attempt{{0, forbidden}, {forbiddenMax, forbidden}}, forbidden, 1},
		"what may not be read for a moment":  {[]attempt{{0, forbidden}, {forbiddenMax - 1, forbidden}, {0, nil}}, nil, 0},
		"what may not be read after a while": {[]attempt{{0, cut}, {forbiddenMax, forbidden}}, forbidden, 1},
		"what there is not":                  {[]attempt{{0, missing}}, missing, 1},
		"what there is not for a while":      {[]attempt{{0, missing}, {short, nil}}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			now, told := time.Unix(1000, 0), 0
			gvk, app := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, types.NamespacedName{Namespace: "n", Name: "a"}
			l := &ManagedObjects{
				now: func() time.Time { return now }, log: slog.New(slog.DiscardHandler), changed: func(types.NamespacedName) { told++ },
			}
			l.watches = map[schema.GroupVersionKind]*kindWatch{gvk: {
				l: l, gvk: gvk, mapping: &meta.RESTMapping{Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}},
				waiting: map[types.NamespacedName]bool{},
			}}
			if ready, err := l.Ready(gvk, app); ready || err != nil {
				t.Fatalf("before the first attempt: ready %t, %v", ready, err)
			}
			for _, a := range c.attempts {
				now = now.Add(a.after)
				l.watches[gvk].tried(t.Context(), a.err)
			}
			ready, err := l.Ready(gvk, app)
			if ready || (c.want == nil) != (err == nil) || !errors.Is(err, c.want) {
				t.Errorf("ready %t, and said is %v; want %v", ready, err, c.want)
			}
			if told != c.told {
				t.Errorf("the application was told %d times, want %d", told, c.told)
			}
		})
	}
}
