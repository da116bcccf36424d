package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// repositoryReadTimeout bounds one read of a ConfigMap of repositories that is not watched.
const repositoryReadTimeout = 10 * time.Second

// repository is the result of looking up a workflow's artifact repository, which is done once.
// found is nil if there is none.
type repository struct {
	known bool // false while a ConfigMap is being read
	found *pods.Repository
	err   error
}

// repositoryReads reads the ConfigMaps of repositories that are not watched, outside the turns of
// workflows. Few workflows name such a ConfigMap.
type repositoryReads = controlloop.Loop[repositoryRead, struct{}]

type repositoryRead struct {
	key, configMap types.NamespacedName
	// uid is the UID of the workflow.
	uid types.UID
}

func newRepositoryReads(c *Controller) *repositoryReads {
	return controlloop.New[repositoryRead, struct{}](controlloop.Config[repositoryRead]{
		Name: "workflow-repositories", Workers: readers, Turn: c.readRepository, Clock: c.Clock,
	})
}

// podOptions returns the options for building the workflow's pods.
func (c *Controller) podOptions(r *record) (pods.Options, error) {
	options := c.Settings().Options(c.Pods)
	options.Repository, options.Evaluate, options.Looked = r.repository.found, c.evaluate(r), r.looks.known
	return options, r.repository.err
}

// ensureRepository looks up the workflow's artifact repository. It reports whether the result is
// known; if not, the answer of the server wakes the workflow.
func (c *Controller) ensureRepository(r *record) bool {
	if r.repository != nil {
		return r.repository.known
	}
	r.repository = &repository{}
	if ref := r.spec.ArtifactRepositoryRef; ref != nil && ref.ConfigMap != "" && ref.ConfigMap != wf.RepositoriesConfigMap {
		name := types.NamespacedName{Namespace: r.key.Namespace, Name: ref.ConfigMap}
		c.repositories.Wake(repositoryRead{r.key, name, r.uid})
		return false
	}
	c.findRepository(r, func(namespace, name string) *corev1.ConfigMap {
		m, _ := c.Informers.Repositories.Get(namespace, name)
		return m
	})
	return true
}

// readRepository reads a ConfigMap and posts it to the workflow. An error that may pass is not
// posted: the ConfigMap is read again after a backoff.
func (c *Controller) readRepository(x repositoryRead) {
	if c.loop.Get(x.key) == nil {
		c.repositories.Drop(x) // the manager no longer has a record of the workflow
		return
	}
	ctx, cancel := context.WithTimeout(c.requests, repositoryReadTimeout)
	m, err := c.Client.CoreV1().ConfigMaps(x.configMap.Namespace).Get(ctx, x.configMap.Name, metav1.GetOptions{})
	cancel()
	if c.requests.Err() != nil {
		return
	}
	if err != nil && !refusedToRead(err) {
		c.Log.Warn("reading a ConfigMap of artifact repositories failed; trying again", "configMap", x.configMap,
			"workflow", x.key, "error", err)
		c.repositories.Retry(x)
		return
	}
	c.repositories.Drop(x)
	c.loop.Post(x.key, x.uid, func(r *record) {
		switch {
		case r.run == nil || r.repository == nil || r.repository.known:
		case err != nil && !apierrors.IsNotFound(err):
			r.repository.known, r.repository.err = true, fmt.Errorf("artifactRepositoryRef: %w", err)
		default:
			c.findRepository(r, func(namespace, _ string) *corev1.ConfigMap {
				// Of another namespace, a workflow may read only the ConfigMap
				// artifact-repositories.
				if namespace != x.configMap.Namespace || err != nil {
					return nil
				}
				return m
			})
		}
	})
}

// findRepository takes in the workflow's artifact repository. get returns nil for a ConfigMap that
// does not exist.
func (c *Controller) findRepository(r *record, get func(namespace, name string) *corev1.ConfigMap) {
	found, status, err := pods.FindRepository(r.spec.ArtifactRepositoryRef, []string{r.key.Namespace, c.SystemNamespace}, get)
	if status != nil && r.run.Workflow.Status.ArtifactRepositoryRef == nil {
		r.run.Workflow.Status.ArtifactRepositoryRef = status
		r.news(c.Clock.Now())
		r.next.fields = true
	}
	if found == nil && err == nil {
		if found = c.Settings().Repository; found != nil && r.run.Workflow.Status.ArtifactRepositoryRef == nil {
			r.run.Workflow.Status.ArtifactRepositoryRef = &wf.ArtifactRepositoryRefStatus{Default: true, ArtifactRepository: &found.Location}
			r.news(c.Clock.Now())
			r.next.fields = true
		}
	}
	r.repository = &repository{true, found, err}
}
