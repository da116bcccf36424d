package manager

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/podgroup"
)

// podOwners reads the metadata of the owners of pods. It implements podgroup.Owners.
type podOwners struct{ client metadata.Interface }

// ownerTimeout bounds one read.
const ownerTimeout = 30 * time.Second

func newPodOwners(cfg *rest.Config) (podgroup.Owners, error) {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return podOwners{client}, nil
}

// ownerResources are the resources of the kinds that podgroup asks for.
var ownerResources = map[string]string{
	"ReplicaSet": "replicasets", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets", "Job": "jobs",
}

// Annotations implements podgroup.Owners.
func (o podOwners) Annotations(ctx context.Context, namespace string, owner metav1.OwnerReference) (map[string]string, error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
	defer cancel()
	object, err := o.client.Resource(gv.WithResource(ownerResources[owner.Kind])).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && object.UID != owner.UID:
		return nil, nil // the pod's owner is gone
	case err != nil:
		return nil, err
	}
	return object.Annotations, nil
}
