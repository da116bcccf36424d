package informer

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// untilServed waits until the API server serves the resource and lets it be listed, and returns
// false if ctx is done before. Absent says what it waits for.
func (i *Informer[T]) untilServed(ctx context.Context) bool {
	read := listWatch(i.client, i.resource, i.options)
	for ctx.Err() == nil {
		_, err := read.ListWithContextFunc(ctx, metav1.ListOptions{Limit: 1})
		pause := i.options.Optional
		switch {
		case err == nil:
			i.absent.Store(nil)
			return true
		case apierrors.IsNotFound(err):
			why := "the API server does not serve it"
			i.absent.Store(&why)
		case apierrors.IsForbidden(err):
			why := "the manager may not list it"
			i.absent.Store(&why)
		default: // whether it is served is not known
			pause = min(pause, time.Second)
		}
		if i.absent.Load() != nil {
			i.fillOnce.Do(func() { close(i.filled) })
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return false
}

// Absent returns why the objects of an optional resource cannot be known, or nothing if they are.
func (i *Informer[T]) Absent() string {
	if why := i.absent.Load(); why != nil {
		return *why
	}
	return ""
}
