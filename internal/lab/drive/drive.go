// Package drive is the bare client of a measurement. It creates jobs, and for the floor pods and
// statuses, at a given concurrency over several connections. Built-in types are sent as protobuf,
// custom ones as JSON.
//
// It deliberately writes to the API server without internal/apiwriter: the measurement must not
// depend on what it measures.
package drive

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// connections is the number of connections. So many are enough that the streams of one connection
// do not limit the highest concurrency in use.
const connections = 8

// pageSize is the page size of lists: a page of pods is a few megabytes.
const pageSize = 2500

// Object is a typed API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Client writes and lists jobs of one kind, and pods. It is safe for concurrent use.
type Client struct {
	jobs     schema.GroupVersionResource
	jobConns []rest.Interface
	podConns []rest.Interface
	next     atomic.Uint32
}

// New connects to a server.
func New(cfg *rest.Config, jobs schema.GroupVersionResource) (*Client, error) {
	conns, err := kubeclient.Connections(cfg, connections)
	if err != nil {
		return nil, err
	}
	c := &Client{jobs: jobs}
	if c.jobConns, err = clients(cfg, conns, jobs.GroupVersion()); err != nil {
		return nil, err
	}
	if c.podConns, err = clients(cfg, conns, corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	return c, nil
}

func clients(cfg *rest.Config, conns []*http.Client, gv schema.GroupVersion) ([]rest.Interface, error) {
	var out []rest.Interface
	for _, conn := range conns {
		var client rest.Interface
		var err error
		if scheme.Scheme.IsVersionRegistered(gv) {
			client, err = kubeclient.ForGroupVersion(cfg, conn, gv, scheme.Scheme)
		} else {
			client, err = forUnknown(cfg, conn, gv)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, client)
	}
	return out, nil
}

// forUnknown returns a client for kinds without Go types.
func forUnknown(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion) (rest.Interface, error) {
	c := rest.CopyConfig(cfg)
	c.GroupVersion, c.APIPath = &gv, "/apis"
	c.NegotiatedSerializer = unstructuredscheme.NewUnstructuredNegotiatedSerializer()
	client, err := rest.RESTClientForConfigAndClient(c, conn)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", gv, err)
	}
	return client, nil
}

func (c *Client) pick(from []rest.Interface) rest.Interface {
	return from[c.next.Add(1)%uint32(len(from))]
}

// CreateJob creates job and stores the created object in created. An object without namespace is of a
// kind without namespaces.
func (c *Client) CreateJob(ctx context.Context, job, created Object) error {
	namespace := job.GetNamespace()
	err := c.pick(c.jobConns).Post().NamespaceIfScoped(namespace, namespace != "").Resource(c.jobs.Resource).Body(job).Do(ctx).Into(created)
	if err != nil {
		return fmt.Errorf("create job %s/%s: %w", job.GetNamespace(), job.GetName(), err)
	}
	return nil
}

// DeleteJob deletes a job, and its pods in the background. A job that does not exist is no error.
func (c *Client) DeleteJob(ctx context.Context, namespace, name string) error {
	options := &metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	err := deletion(c.pick(c.jobConns), options).Namespace(namespace).Resource(c.jobs.Resource).Name(name).Do(ctx).Error()
	if err := ignoreNotFound(err); err != nil {
		return fmt.Errorf("delete job %s/%s: %w", namespace, name, err)
	}
	return nil
}

// UpdateJobStatus replaces the status of job.
func (c *Client) UpdateJobStatus(ctx context.Context, job Object) error {
	err := c.pick(c.jobConns).Put().Namespace(job.GetNamespace()).Resource(c.jobs.Resource).Name(job.GetName()).
		SubResource("status").Body(job).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("update status of job %s/%s: %w", job.GetNamespace(), job.GetName(), err)
	}
	return nil
}

// CreatePod creates a pod.
func (c *Client) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	err := c.pick(c.podConns).Post().Namespace(pod.Namespace).Resource("pods").Body(pod).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Submit creates n jobs in order at the given concurrency, and calls progress with the number of
// jobs created so far. progress must be safe for concurrent use.
func (c *Client) Submit(ctx context.Context, n, concurrency int, job func(int) Object, progress func(done int)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	var done atomic.Int64
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			j := job(i)
			created := j.DeepCopyObject().(Object)
			if err := c.CreateJob(ctx, j, created); err != nil {
				return err
			}
			progress(int(done.Add(1)))
			return nil
		})
	}
	return group.Wait()
}

// Arrivals are jobs that are created each at its time.
type Arrivals struct {
	N int
	// Due returns when the i-th job is due, after the first call. Times do not decrease.
	Due func(i int) time.Duration
	Job func(i int) (Object, error)
	// InFlight bounds the creates in flight. 0 is what the connections carry at a time. A server that
	// takes longer makes the client late, which Sent.Lag shows.
	InFlight int
	// Created, if set, is called when the i-th job has been created. It must be safe for concurrent use
	// and must not block.
	Created func(i int)
}

// Sent says when a job was due, and how much later it was sent.
type Sent struct {
	Due time.Time
	Lag time.Duration
}

const inFlightMax = 200 * connections

// Send creates jobs in order. Each is sent when it is due, whether earlier ones have been answered or
// not: an open loop. Send returns when all have been answered.
func (c *Client) Send(ctx context.Context, a Arrivals) ([]Sent, error) {
	group, sending := errgroup.WithContext(ctx)
	group.SetLimit(cmp.Or(a.InFlight, inFlightMax))
	out := make([]Sent, a.N)
	begin := time.Now()
	for i := range out {
		out[i].Due = begin.Add(a.Due(i))
	}
	for i := range out {
		j, err := a.Job(i)
		if err != nil {
			return out, errors.Join(fmt.Errorf("job %d: %w", i, err), group.Wait())
		}
		created := j.DeepCopyObject().(Object)
		if Until(sending, out[i].Due) != nil {
			break
		}
		group.Go(func() error {
			out[i].Lag = max(0, time.Since(out[i].Due))
			if err := c.CreateJob(sending, j, created); err != nil {
				return err
			}
			if a.Created != nil {
				a.Created(i)
			}
			return nil
		})
	}
	return out, errors.Join(group.Wait(), context.Cause(ctx))
}

// LagMax returns the greatest lag.
func LagMax(sent []Sent) (most time.Duration) {
	for _, s := range sent {
		most = max(most, s.Lag)
	}
	return most
}

// Pace sends n jobs at a rate, in jobs per second.
func (c *Client) Pace(ctx context.Context, n int, rate float64, job func(int) Object) ([]Sent, error) {
	return c.Send(ctx, Arrivals{N: n, Job: func(i int) (Object, error) { return job(i), nil },
		Due: func(i int) time.Duration { return time.Duration(float64(i) / rate * float64(time.Second)) }})
}

// Until waits until a time.
func Until(ctx context.Context, at time.Time) error {
	if wait := time.Until(at); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return context.Cause(ctx)
}

// Pods lists a namespace's pods.
func (c *Client) Pods(ctx context.Context, namespace string) (out []corev1.Pod, err error) {
	err = list(ctx, c.podConns[0], "pods", namespace, func() runtime.Object { return &corev1.PodList{} },
		func(o runtime.Object) { out = append(out, *o.(*corev1.Pod)) })
	return out, err
}

// Jobs lists a namespace's jobs. newList returns an empty list.
func (c *Client) Jobs(ctx context.Context, namespace string, newList func() runtime.Object) (out []Object, err error) {
	err = list(ctx, c.jobConns[0], c.jobs.Resource, namespace, newList,
		func(o runtime.Object) { out = append(out, o.(Object)) })
	return out, err
}

// list calls each with the objects of a namespace.
func list(ctx context.Context, conn rest.Interface, resource, namespace string, newList func() runtime.Object, each func(runtime.Object)) error {
	next := ""
	for {
		page := newList()
		err := conn.Get().Namespace(namespace).Resource(resource).
			Param("limit", fmt.Sprint(pageSize)).Param("continue", next).Do(ctx).Into(page)
		if err == nil {
			err = meta.EachListItem(page, func(o runtime.Object) error { each(o); return nil })
		}
		if err != nil {
			return fmt.Errorf("list %s of namespace %q: %w", resource, namespace, err)
		}
		if next = page.(metav1.ListInterface).GetContinue(); next == "" {
			return nil
		}
	}
}

// Nodes lists the nodes.
func (c *Client) Nodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	if err := c.podConns[0].Get().Resource("nodes").Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return list.Items, nil
}

// CreateNamespace creates a namespace and waits for its default service account, without which no
// pods can be created in it.
func (c *Client) CreateNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.podConns[0].Post().Resource("namespaces").Body(ns).Do(ctx).Error(); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		err := c.podConns[0].Get().Namespace(name).Resource("serviceaccounts").Name("default").Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("namespace %s: its default service account: %w", name, err)
	}
	return nil
}

// DeleteNamespace requests the deletion of a namespace and does not wait for it.
func (c *Client) DeleteNamespace(ctx context.Context, name string) error {
	err := c.podConns[0].Delete().Resource("namespaces").Name(name).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	return nil
}

// RemoveNamespace deletes a namespace's jobs and pods as users do, waits until no pod is left, and
// requests the deletion of the namespace, which is then little work.
func (c *Client) RemoveNamespace(ctx context.Context, name string) error {
	background := &metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	err := deletion(c.jobConns[0], background).Namespace(name).Resource(c.jobs.Resource).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("delete the jobs of namespace %s: %w", name, err)
	}
	var asked time.Time
	err = wait.PollUntilContextCancel(ctx, removalPoll, true, func(ctx context.Context) (bool, error) {
		if time.Since(asked) > removalAgain {
			err := c.podConns[0].Delete().Namespace(name).Resource("pods").Body(background).Do(ctx).Error()
			if err != nil && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) {
				return false, err
			}
			asked = time.Now()
		}
		var some corev1.PodList
		err := c.podConns[0].Get().Namespace(name).Resource("pods").Param("limit", "1").Do(ctx).Into(&some)
		return len(some.Items) == 0, err
	})
	if err != nil {
		return fmt.Errorf("delete the pods of namespace %s: %w", name, err)
	}
	return c.DeleteNamespace(ctx, name)
}

const (
	// removalPoll is the interval at which the progress of the removal is checked.
	removalPoll = 200 * time.Millisecond
	// removalAgain is the interval at which the deletion of the pods is requested again: there is a
	// limit to the pods that one request deletes.
	removalAgain = 10 * time.Second
)

// clearConcurrency is a concurrency at which the API server's throughput no longer grows.
const clearConcurrency = 16

// Clear deletes a namespace's jobs and then its pods, without grace period, and returns when no pod
// is left. It removes the pods' finalizers, because their controllers may have been stopped.
func (c *Client) Clear(ctx context.Context, namespace string, newList func() runtime.Object) error {
	jobs, err := c.Jobs(ctx, namespace, newList)
	if err != nil {
		return err
	}
	// A request encodes its body by setting its kind, so that requests cannot share one.
	options := func() *metav1.DeleteOptions {
		return &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	}
	err = each(ctx, len(jobs), func(ctx context.Context, i int) error {
		return ignoreNotFound(deletion(c.pick(c.jobConns), options()).Namespace(namespace).Resource(c.jobs.Resource).
			Name(jobs[i].GetName()).Do(ctx).Error())
	})
	if err != nil {
		return fmt.Errorf("delete the jobs of namespace %s: %w", namespace, err)
	}
	for {
		pods, err := c.Pods(ctx, namespace)
		if err != nil || len(pods) == 0 {
			return err
		}
		err = each(ctx, len(pods), func(ctx context.Context, i int) error {
			if len(pods[i].Finalizers) > 0 {
				err := c.pick(c.podConns).Patch("application/merge-patch+json").Namespace(namespace).Resource("pods").
					Name(pods[i].Name).Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(ctx).Error()
				if err := ignoreNotFound(err); err != nil {
					return err
				}
			}
			return ignoreNotFound(c.pick(c.podConns).Delete().Namespace(namespace).Resource("pods").
				Name(pods[i].Name).Body(options()).Do(ctx).Error())
		})
		if err != nil {
			return fmt.Errorf("delete the pods of namespace %s: %w", namespace, err)
		}
	}
}

func each(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clearConcurrency)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// deletion returns a request that deletes jobs. Its options are in JSON, which a client for kinds
// without Go types cannot encode.
func deletion(conn rest.Interface, options *metav1.DeleteOptions) *rest.Request {
	body, err := json.Marshal(options)
	if err != nil {
		panic(err) // numbers and texts can always be encoded
	}
	return conn.Delete().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
