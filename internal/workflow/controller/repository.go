package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// repositoryReadTimeout bounds the read of a ConfigMap of repositories that is not watched.
const repositoryReadTimeout = 10 * time.Second

// repository is the result of looking up a workflow's artifact repository, which is done once.
// found is nil if there is none.
type repository struct {
	found *pods.Repository
	err   error
}

// podOptions returns the options for building the workflow's pods.
func (c *Controller) podOptions(r *record) (pods.Options, error) {
	if r.repository == nil {
		r.repository = c.findRepository(r)
	}
	options := c.Pods
	options.Repository, options.Evaluate = r.repository.found, c.evaluate(r)
	return options, r.repository.err
}

func (c *Controller) findRepository(r *record) *repository {
	var failed error
	found, status, err := pods.FindRepository(r.spec.ArtifactRepositoryRef, []string{r.key.Namespace, c.SystemNamespace}, func(namespace, name string) *corev1.ConfigMap {
		if name == wf.RepositoriesConfigMap {
			m, _ := c.Informers.Repositories.Get(namespace, name)
			return m
		}
		if namespace != r.key.Namespace {
			// Of another namespace, a workflow may read only the artifact-repositories ConfigMap.
			return nil
		}
		// Few workflows name another ConfigMap, so it is not watched: it is read when the workflow
		// starts.
		ctx, cancel := context.WithTimeout(context.Background(), repositoryReadTimeout)
		defer cancel()
		m, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			failed = fmt.Errorf("artifactRepositoryRef: %w", err)
			return nil
		}
		return m
	})
	if failed != nil {
		err = failed
	}
	if status != nil && r.run.Workflow.Status.ArtifactRepositoryRef == nil {
		r.run.Workflow.Status.ArtifactRepositoryRef = status
		r.news(c.Clock.Now())
		r.next.fields = true
	}
	return &repository{found, err}
}
