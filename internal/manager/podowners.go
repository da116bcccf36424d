package manager

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/podgroup"
)

// podOwners reads the metadata of the owners of pods. It implements podgroup.Owners.
type podOwners struct {
	ctx    context.Context
	client metadata.Interface
	turns  chan struct{} // bounds the requests in flight
}

// ownersInFlight is the number of owners that are read at the same time.
const ownersInFlight = 16

// ownerTimeout bounds one read.
const ownerTimeout = 30 * time.Second

func newPodOwners(ctx context.Context, cfg *rest.Config) (podgroup.Owners, error) {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &podOwners{ctx: ctx, client: client, turns: make(chan struct{}, ownersInFlight)}, nil
}

// ownerResources are the resources of the kinds that podgroup asks for.
var ownerResources = map[string]string{
	"ReplicaSet": "replicasets", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets", "Job": "jobs",
}

// Annotations implements podgroup.Owners.
func (o *podOwners) Annotations(namespace string, owner metav1.OwnerReference, answer func(map[string]string, error)) {
	go func() {
		select {
		case o.turns <- struct{}{}:
			defer func() { <-o.turns }()
		case <-o.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(o.ctx, ownerTimeout)
		defer cancel()
		gv, err := schema.ParseGroupVersion(owner.APIVersion)
		if err != nil {
			answer(nil, err)
			return
		}
		object, err := o.client.Resource(gv.WithResource(ownerResources[owner.Kind])).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		switch {
		case o.ctx.Err() != nil: // the manager ends
		case err != nil:
			answer(nil, err)
		case object.UID != owner.UID:
			answer(nil, nil) // the pod's owner is gone
		default:
			answer(object.Annotations, nil)
		}
	}()
}
