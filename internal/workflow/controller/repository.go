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

// repositoryReadTimeout bounds the reading of a ConfigMap of repositories that is not watched.
const repositoryReadTimeout = 10 * time.Second

// repository is a workflow's artifact repository, found once; nil in it: there is none.
type repository struct {
	found *pods.Repository
	err   error
}

// podOptions are those of a workflow's pods.
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
			return nil // of another namespace a workflow gets to see nothing but its repositories
		}
		// Few workflows name another ConfigMap: it is read when they start.
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
