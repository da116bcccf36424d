package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/localcluster"
)

// sampleWorkflows is the number of workflows in a sample that finds the best concurrency.
const sampleWorkflows = 150

// podAt is a pod of the run: its name, and its node at its creation.
type podAt struct{ name, node string }

// floorClient writes what the manager wrote, without a controller. It uses its connections in turn.
type floorClient struct {
	*trial
	rests []rest.Interface
	cores []rest.Interface
}

// floor measures how long a bare client takes to create the same workflows, create their pods on
// the same nodes, write the same final statuses when the pods have ended and, if the run collected
// its pods, delete them. The nodes then make the same writes as in the run.
func (t *trial) floor(ctx context.Context, list []drive.Object) error {
	if t.model == nil {
		return errors.New("no pod of the run was seen")
	}
	pods := map[string][]podAt{}
	for i := range t.Log.Events {
		if e := &t.Log.Events[i]; e.Namespace == namespace && e.Resource == "pods" && e.Sub == "" && e.Verb == "create" && e.OK() {
			pods[workflowOf(e.Name)] = append(pods[workflowOf(e.Name)], podAt{e.Name, e.Node})
		}
	}
	f := &floorClient{trial: t}
	conns, err := kubeclient.Connections(t.REST, 8)
	if err != nil {
		return err
	}
	for _, conn := range conns {
		r, err1 := kubeclient.ForGroupVersion(t.REST, conn, wf.GroupVersion, scheme.Scheme)
		c, err2 := kubeclient.ForGroupVersion(t.REST, conn, corev1.SchemeGroupVersion, scheme.Scheme)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		f.rests, f.cores = append(f.rests, r), append(f.cores, c)
	}
	clear := func() error { return t.Client.Clear(ctx, namespace, newList) }
	result, err := t.Floor(ctx, []localcluster.Component{localcluster.Manager}, clear, func(ns string, sample bool, concurrency int) (int, time.Duration, error) {
		some := list
		if sample {
			some = list[:min(len(list), sampleWorkflows)]
		}
		took, err := f.write(ctx, ns, some, pods, concurrency)
		if err == nil && sample {
			err = t.Client.Clear(ctx, ns, newList)
		}
		return len(some), took, err
	})
	t.run.FloorSamples = result.Samples
	if err != nil {
		return err
	}
	took := result.Took
	t.run.FloorSeconds, t.run.FloorConcurrency = round(took.Seconds()), result.Concurrency
	t.run.Ratio = round(t.run.Seconds / took.Seconds())
	// In the floor all pods of one workflow run in parallel, so their time is PodTime.
	t.run.RatioBeyondPods = round((t.run.Seconds - t.criticalSeconds()) / (took - t.cfg.PodTime).Seconds())
	return nil
}

// write writes the workflows of a list into a fresh namespace. Workflows overlap; the writes of one
// workflow are sequential, but its pods are written in parallel.
func (f *floorClient) write(ctx context.Context, namespace string, list []drive.Object, pods map[string][]podAt, concurrency int) (time.Duration, error) {
	if err := f.Client.CreateNamespace(ctx, namespace); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	ends, err := f.podsThatEnd(ctx, namespace)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	slots := make(chan struct{}, concurrency)
	group.SetLimit(floorUnderWayMax)
	n := 0
	for i, o := range list {
		n++
		conn := i % len(f.rests)
		w := o.(*wf.Workflow)
		group.Go(func() error { return f.one(ctx, namespace, w, pods[w.Name], conn, slots, ends) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}

// floorUnderWayMax bounds the number of workflows under way in the floor.
const floorUnderWayMax = 10_000

// podEnds records which pods have ended.
type podEnds struct {
	mu   sync.Mutex
	over map[string]chan struct{}
}

// of returns a channel that is closed when the pod has ended.
func (e *podEnds) of(pod string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.over[pod]
	if c == nil {
		c = make(chan struct{})
		e.over[pod] = c
	}
	return c
}

// podsThatEnd watches for pods of a namespace that end, until ctx is done.
func (f *floorClient) podsThatEnd(ctx context.Context, namespace string) (*podEnds, error) {
	ends := &podEnds{over: map[string]chan struct{}{}}
	return ends, follow(ctx, f.REST, corev1.SchemeGroupVersion.WithResource("pods"), namespace,
		func(o *metav1.ListOptions) { o.FieldSelector = "status.phase=Succeeded" },
		func(m *metav1.PartialObjectMetadata) {
			select {
			case <-ends.of(m.Name): // a watch that broke has shown the pod before
			default:
				close(ends.of(m.Name))
			}
		})
}

// one writes one workflow, its pods and its status. Each write takes a slot.
func (f *floorClient) one(ctx context.Context, namespace string, atRest *wf.Workflow, pods []podAt, conn int, slots chan struct{}, ends *podEnds) error {
	write := func(do func() error) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		defer func() { <-slots }()
		return do()
	}
	fresh := f.shape.Workflow(namespace, atRest.Name, f.cfg.PodTime, f.cfg.PodGC)
	created := &wf.Workflow{}
	if err := write(func() error { return f.Client.CreateJob(ctx, fresh, created) }); err != nil {
		return err
	}
	each := func(do func(podAt) error) error {
		inner, _ := errgroup.WithContext(ctx)
		for _, p := range pods {
			inner.Go(func() error { return write(func() error { return do(p) }) })
		}
		return inner.Wait()
	}
	if err := each(func(p podAt) error {
		return f.cores[conn].Post().Namespace(namespace).Resource("pods").Body(f.pod(created, p)).Do(ctx).Error()
	}); err != nil {
		return err
	}
	for _, p := range pods {
		select {
		case <-ends.of(p.name):
		case <-ctx.Done():
			return fmt.Errorf("waiting for pod %s: %w", p.name, context.Cause(ctx))
		}
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": atRest.Labels, "annotations": atRest.Annotations}, "status": atRest.Status})
	if err != nil {
		return err
	}
	if err := write(func() error {
		return f.rests[conn].Patch(types.MergePatchType).Namespace(namespace).Resource("workflows").Name(atRest.Name).Body(data).Do(ctx).Error()
	}); err != nil || f.cfg.PodGC == "" {
		return err
	}
	now := int64(0)
	return each(func(p podAt) error {
		err := f.cores[conn].Delete().Namespace(namespace).Resource("pods").Name(p.name).Body(&metav1.DeleteOptions{GracePeriodSeconds: &now}).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// pod returns a copy of the model for another workflow, name and node, without the fields that the
// server filled in.
func (f *floorClient) pod(owner *wf.Workflow, p podAt) *corev1.Pod {
	spec := *f.model.Spec.DeepCopy()
	spec.NodeName = p.node
	var volumes []corev1.Volume
	injected := map[string]bool{}
	for _, v := range spec.Volumes {
		if v.Projected != nil && len(v.Name) > 15 && v.Name[:15] == "kube-api-access" {
			injected[v.Name] = true
			continue
		}
		volumes = append(volumes, v)
	}
	spec.Volumes = volumes
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			var mounts []corev1.VolumeMount
			for _, m := range list[i].VolumeMounts {
				if !injected[m.Name] {
					mounts = append(mounts, m)
				}
			}
			list[i].VolumeMounts = mounts
		}
	}
	labels := map[string]string{}
	for k, v := range f.model.Labels {
		labels[k] = v
	}
	labels[wf.LabelWorkflow] = owner.Name
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: p.name, Labels: labels, Annotations: f.model.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, wf.GroupVersion.WithKind("Workflow"))}},
		Spec: spec,
	}
}
