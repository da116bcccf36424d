package kubeclient

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// transientMax is how long errors of a server or connection count as temporary.
	transientMax = 30 * time.Second
	// ForbiddenMax is how long the answer 403 may be temporary: a server that has just started
	// forbids every request until it has read the cluster's roles.
	ForbiddenMax = 10 * time.Second
)

// TransientMax returns for how long an error like err may be temporary, from its first occurrence;
// zero means that it is permanent. A program that reports an error only after this time does not
// report the restart of a server.
func TransientMax(err error) time.Duration {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return transientMax // an error of the connection
	}
	switch code := status.Status().Code; {
	case code >= http.StatusInternalServerError, code == http.StatusTooManyRequests, code == http.StatusGone:
		return transientMax
	case code == http.StatusForbidden:
		return ForbiddenMax
	}
	return 0
}
