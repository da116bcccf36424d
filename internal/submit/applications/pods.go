package applications

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// Pods returns the pods of an application's workloads in this cluster, or of one component if
// component is not empty. They are in the order of the recorded objects, and then of names.
func (c *Client) Pods(ctx context.Context, app *oam.Application, component string) ([]corev1.Pod, error) {
	rt, err := c.Tracker(ctx, app.Namespace, app.Name)
	if err != nil {
		return nil, err
	}
	if component != "" && !slices.ContainsFunc(app.Spec.Components,
		func(x oam.Component) bool { return x.Name == component }) {
		return nil, fmt.Errorf("application %s has no component %s", app.Name, component)
	}
	var out []corev1.Pod
	elsewhere := ""
	for i := range rt.Spec.ManagedResources {
		m := &rt.Spec.ManagedResources[i]
		if component != "" && m.Component != component {
			continue
		}
		if m.Cluster != "" {
			elsewhere = m.Cluster
			continue
		}
		pods, err := c.podsOf(ctx, m)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, pods...)
	}
	if len(out) == 0 && elsewhere != "" {
		return nil, fmt.Errorf("application %s runs in cluster %s: ask there, with its kubeconfig", app.Name, elsewhere)
	}
	return out, nil
}

// podsOf returns the pods of one object. It returns nil if the object has been deleted.
func (c *Client) podsOf(ctx context.Context, m *oam.ManagedResource) ([]corev1.Pod, error) {
	var selector *metav1.LabelSelector
	var err error
	apps, batch := c.core.AppsV1(), c.core.BatchV1()
	switch m.APIVersion + "/" + m.Kind {
	case "apps/v1/Deployment":
		o, e := apps.Deployments(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		selector, err = o.Spec.Selector, e
	case "apps/v1/StatefulSet":
		o, e := apps.StatefulSets(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		selector, err = o.Spec.Selector, e
	case "apps/v1/DaemonSet":
		o, e := apps.DaemonSets(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		selector, err = o.Spec.Selector, e
	case "batch/v1/Job":
		o, e := batch.Jobs(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		selector, err = o.Spec.Selector, e
	case "v1/Pod":
		o, err := c.core.CoreV1().Pods(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil {
			return nil, ignoreGone(err)
		}
		return []corev1.Pod{*o}, nil
	case "batch.volcano.sh/v1alpha1/Job":
		selector = metav1.AddLabelToSelector(&metav1.LabelSelector{}, "volcano.sh/job-name", m.Name)
	case "argoproj.io/v1alpha1/Workflow":
		selector = metav1.AddLabelToSelector(&metav1.LabelSelector{}, "workflows.argoproj.io/workflow", m.Name)
	}
	if err != nil || selector == nil {
		return nil, ignoreGone(err)
	}
	list, err := c.core.CoreV1().Pods(m.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Services returns the Services of an application in this cluster, or of one component if component
// is not empty.
func (c *Client) Services(ctx context.Context, app *oam.Application, component string) ([]corev1.Service, error) {
	rt, err := c.Tracker(ctx, app.Namespace, app.Name)
	if err != nil {
		return nil, err
	}
	var out []corev1.Service
	for i := range rt.Spec.ManagedResources {
		m := &rt.Spec.ManagedResources[i]
		if m.Cluster != "" || m.Kind != "Service" || m.APIVersion != "v1" || component != "" && m.Component != component {
			continue
		}
		s, err := c.core.CoreV1().Services(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, *s)
	}
	return out, nil
}

// streamsMax bounds the number of logs that are read at the same time.
const streamsMax = 100

// Logs calls print with the lines of pods: one pod after the other, or with Follow all pods at the
// same time, as lines come. print is called by one goroutine at a time.
func (c *Client) Logs(ctx context.Context, pods []corev1.Pod, o workflows.LogOptions,
	print func(workflows.Line)) error {
	emit := o.Filter(print)
	failed := make([]error, len(pods))
	if !o.Follow {
		for i := range pods {
			failed[i] = workflows.StreamPod(ctx, c.core, &pods[i], o, emit)
		}
	} else {
		if len(pods) > streamsMax {
			return fmt.Errorf("there are %d pods; choose among them with --component or --pod: at most %d are followed",
				len(pods), streamsMax)
		}
		var reading sync.WaitGroup
		for i := range pods {
			reading.Go(func() { failed[i] = workflows.StreamPod(ctx, c.core, &pods[i], o, emit) })
		}
		reading.Wait()
	}
	if slices.Contains(failed, nil) {
		return nil // pods that have not started yet have no log
	}
	return errors.Join(failed...)
}

// ExecOptions describe the command to run in a pod, and the streams to connect it to. Nil streams
// are not connected.
type ExecOptions struct {
	Container string
	Command   []string
	TTY       bool
	In        io.Reader
	Out, Err  io.Writer
	Sizes     remotecommand.TerminalSizeQueue
}

// Exec runs a command in a container. If the command fails, the error contains its exit code: see
// k8s.io/client-go/util/exec.
func (c *Client) Exec(ctx context.Context, pod *corev1.Pod, o ExecOptions) error {
	req := c.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: o.Container, Command: o.Command, Stdin: o.In != nil, Stdout: o.Out != nil, Stderr: o.Err != nil && !o.TTY, TTY: o.TTY,
		}, scheme.ParameterCodec)
	websocket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, req.URL().String())
	if err != nil {
		return err
	}
	old, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, req.URL())
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(websocket, old,
		func(err error) bool { return !errors.Is(err, context.Canceled) && isUpgradeFailure(err) })
	if err != nil {
		return err
	}
	stream := remotecommand.StreamOptions{Stdin: o.In, Stdout: o.Out, Stderr: o.Err, Tty: o.TTY,
		TerminalSizeQueue: o.Sizes}
	if o.TTY {
		stream.Stderr = nil
	}
	return executor.StreamWithContext(ctx, stream)
}

// isUpgradeFailure reports whether the server does not support the newer protocol.
func isUpgradeFailure(err error) bool {
	return strings.Contains(err.Error(), "unable to upgrade") || strings.Contains(err.Error(), "bad handshake")
}

// Forward forwards local ports, given as LOCAL:REMOTE, to a pod until ctx is done. ready is called
// with the ports when they can be used.
func (c *Client) Forward(ctx context.Context, pod *corev1.Pod, addresses, ports []string, out, errOut io.Writer,
	ready func([]portforward.ForwardedPort)) error {
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return err
	}
	url := c.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	stop, up := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(dialer, addresses, ports, stop, up, out, errOut)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-up:
			if list, err := f.GetPorts(); err == nil {
				ready(list)
			}
		case <-ctx.Done():
		}
		<-ctx.Done()
		close(stop)
	}()
	if err := f.ForwardPorts(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
