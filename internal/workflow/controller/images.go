package controller

import (
	"cmp"
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/entrypoint"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// Images tells what images run by default. See entrypoint.Finder.
type Images interface {
	Look(ctx context.Context, image string, pullSecrets []*corev1.Secret) (pods.Entrypoint, error)
}

const (
	// looksMax bounds the number of looks at one image for one workflow while its registry gives no
	// answer.
	looksMax = 3
	// imagesMax bounds the number of images of one workflow that are looked up.
	imagesMax = 100
	// pullSecretsMax bounds the number of pull secrets that are read for one image.
	pullSecretsMax = 10
)

// looks are the answers of registries for one workflow, by image, and the pods that wait for some.
type looks struct {
	known   map[string]pods.Entrypoint
	failed  map[string]string // why there is no answer
	waiting map[string][]engine.CreatePod
}

// imageLook is a request to a registry: for an image of a workflow, with the pull secrets of a pod.
type imageLook struct {
	key            types.NamespacedName
	uid            types.UID
	image          string
	serviceAccount string
	secrets        string // names, separated by spaces
}

// imageLooks asks registries outside of the turns of workflows.
type imageLooks = controlloop.Loop[imageLook, int]

func newImageLooks(c *Controller) *imageLooks {
	return controlloop.New[imageLook, int](controlloop.Config[imageLook]{
		Name: "workflow-images", Workers: readers, Turn: c.lookAtImage, Clock: c.Clock, Guard: c.Guard,
	})
}

// lookUpImage lets a pod wait until its image's registry has told what the image runs, and reports
// whether it waits. If the registry has no answer, unknown says why.
func (c *Controller) lookUpImage(r *record, create *engine.CreatePod, unknown *pods.NoCommandError) bool {
	if c.Images == nil {
		return false
	}
	image := unknown.Image
	if why, failed := r.looks.failed[image]; failed {
		unknown.Why = why
		return false
	}
	if len(r.looks.waiting[image]) == 0 && len(r.looks.waiting)+len(r.looks.known) >= imagesMax {
		unknown.Why = "too many images of the workflow were looked up"
		return false
	}
	if r.looks.waiting == nil {
		r.looks.waiting = map[string][]engine.CreatePod{}
	}
	r.looks.waiting[image] = append(r.looks.waiting[image], *create)
	r.events = append(r.events, engine.PodState{
		NodeID: create.NodeID, Phase: corev1.PodPending, Message: "the registry is asked what image " + image + " runs",
	})
	var secrets []string
	for _, s := range create.Spec.ImagePullSecrets {
		secrets = append(secrets, s.Name)
	}
	c.images.Wake(imageLook{
		key: r.key, uid: r.uid, image: image, secrets: strings.Join(secrets, " "),
		serviceAccount: cmp.Or(create.Template.ServiceAccountName, create.Spec.ServiceAccountName, "default"),
	})
	return true
}

// lookAtImage asks a registry and posts the answer to the workflow.
func (c *Controller) lookAtImage(x imageLook) {
	if c.loop.Get(x.key) == nil {
		c.images.Drop(x)
		return
	}
	ctx, cancel := context.WithTimeout(c.images.Context(), repositoryReadTimeout)
	secrets, err := c.pullSecrets(ctx, x)
	cancel()
	var found pods.Entrypoint
	if err == nil {
		found, err = c.Images.Look(c.images.Context(), x.image, secrets)
	}
	if c.images.Context().Err() != nil {
		return
	}
	tries := c.images.Get(x)
	if tries == nil {
		tries = new(int)
		c.images.Put(x, tries)
	}
	*tries++
	if own := (*entrypoint.Error)(nil); err != nil && *tries < looksMax && (!errors.As(err, &own) || own.Again) {
		c.Log.Warn("looking up an image failed; trying again", "image", x.image, "workflow", x.key, "error", err)
		c.images.Retry(x)
		return
	}
	c.images.Drop(x)
	c.loop.Post(x.key, x.uid, func(r *record) {
		waiting := r.looks.waiting[x.image]
		if r.run == nil || len(waiting) == 0 {
			return
		}
		delete(r.looks.waiting, x.image)
		r.waiting = append(r.waiting, waiting...)
		if err != nil {
			set(&r.looks.failed, x.image, err.Error())
			return
		}
		set(&r.looks.known, x.image, found)
	})
}

func set[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// pullSecrets reads the secrets with which a node would pull the pod's images: the pod's own, else
// those of its service account, as admission adds them. Those that do not exist are left out.
func (c *Controller) pullSecrets(ctx context.Context, x imageLook) ([]*corev1.Secret, error) {
	core := c.Client.CoreV1()
	names := strings.Fields(x.secrets)
	if len(names) == 0 {
		account, err := core.ServiceAccounts(x.key.Namespace).Get(ctx, x.serviceAccount, metav1.GetOptions{})
		if err != nil && !refusedToRead(err) {
			return nil, err
		}
		if err == nil {
			for _, s := range account.ImagePullSecrets {
				names = append(names, s.Name)
			}
		}
	}
	var out []*corev1.Secret
	for _, name := range names[:min(len(names), pullSecretsMax)] {
		s, err := core.Secrets(x.key.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !refusedToRead(err) {
			return nil, err
		}
		if err == nil {
			out = append(out, s)
		}
	}
	return out, nil
}
