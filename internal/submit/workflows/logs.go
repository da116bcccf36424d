package workflows

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// LogOptions select what to print.
type LogOptions struct {
	// Pod is the name of one pod of the workflow; empty means all pods. Labels selects among them.
	Pod, Labels string
	// Container is main by default.
	Container  string
	Follow     bool
	Previous   bool
	Timestamps bool
	// Since and SinceTime bound the age of lines. TailLines is the number of lines of each pod; nil
	// means all.
	Since     time.Duration
	SinceTime *time.Time
	TailLines *int64
	// Grep, if set, drops the lines that it does not match.
	Grep *regexp.Regexp
}

// Line is a line printed by a pod.
type Line struct{ Pod, Text string }

const (
	// maxStreams is the number of logs read at the same time. With Follow, the log of a further pod
	// is read once another log has ended.
	maxStreams = 100
	// maxLineBytes is the length at which lines are cut, so that a program that prints no newline
	// cannot exhaust memory.
	maxLineBytes = 1 << 20
	retryLog     = 500 * time.Millisecond
	// logsShown is the number of logs kept as artifacts that a message names.
	logsShown = 20
)

// Filter returns print for the lines that match Grep. It calls print in one goroutine at a time.
func (o *LogOptions) Filter(print func(Line)) func(Line) {
	var lock sync.Mutex
	return func(l Line) {
		if o.Grep == nil || o.Grep.MatchString(l.Text) {
			lock.Lock()
			defer lock.Unlock()
			print(l)
		}
	}
}

// LogSource is a run whose pods are to be read.
type LogSource struct {
	Namespace string
	// Labels is the label selector of the run's pods.
	Labels string
	// Wait waits until the run is completed.
	Wait func(context.Context) error
	// Without returns why there are no pods, or nil if there are none yet.
	Without func(context.Context) error
}

// Logs calls print with the lines of a workflow's pods, as LogsOf does.
func (c *Client) Logs(ctx context.Context, namespace, workflow string, o LogOptions, print func(Line)) error {
	return LogsOf(ctx, c.core, LogSource{
		Namespace: namespace, Labels: LabelsOfPods(workflow),
		Wait: func(ctx context.Context) error {
			_, err := c.Wait(ctx, namespace, workflow)
			return err
		},
		Without: func(ctx context.Context) error {
			if w, err := c.Get(ctx, namespace, workflow); err != nil {
				return err
			} else if w.Status.Phase.Completed() {
				if logs := pods.Logs(w, w.Status.Nodes); len(logs) > 0 {
					more := ""
					if n := len(logs) - logsShown; n > 0 {
						logs, more = logs[:logsShown], fmt.Sprintf("\n  and %d more", n)
					}
					return fmt.Errorf("workflow %s has no pods any more; its logs are kept as artifacts:\n  %s%s", workflow, strings.Join(logs, "\n  "), more)
				}
				return fmt.Errorf("workflow %s has no pods any more: keep them with spec.podGC, or their logs with spec.archiveLogs", workflow)
			}
			return nil
		},
	}, o, print)
}

// LogsOf calls print with the lines of a run's pods. Without Follow it prints pod by pod in the
// order of their creation. With Follow it prints lines as they come, until the run is completed and every log has been read, or a request is forbidden. print is called by one
// goroutine at a time.
func LogsOf(ctx context.Context, core kubernetes.Interface, from LogSource, o LogOptions, print func(Line)) error {
	o.Container = cmp.Or(o.Container, "main")
	emit := o.Filter(print)
	if o.Follow {
		return follow(ctx, core, from, o, emit)
	}
	list, err := core.CoreV1().Pods(from.Namespace).List(ctx, from.options(o))
	if err != nil {
		return err
	}
	pods := list.Items
	if len(pods) == 0 {
		return from.Without(ctx)
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	var failed []error
	for i := range pods {
		if err := StreamPod(ctx, core, &pods[i], o, emit); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) < len(pods) {
		return nil // pods that have not started yet have no log
	}
	return errors.Join(failed...)
}

// LabelsOfPods returns the label selector for the pods of a workflow's nodes.
func LabelsOfPods(workflow string) string {
	return wf.LabelWorkflow + "=" + workflow + ",!" + wf.LabelComponent
}

func (s *LogSource) options(o LogOptions) metav1.ListOptions {
	out := metav1.ListOptions{LabelSelector: s.Labels}
	if o.Labels != "" {
		out.LabelSelector += "," + o.Labels
	}
	if o.Pod != "" {
		out.FieldSelector = fields.OneTermEqualSelector("metadata.name", o.Pod).String()
	}
	return out
}

// follow reads the log of every pod that appears, until the run is completed and all logs have
// ended, or the API server forbids something.
func follow(ctx context.Context, core kubernetes.Interface, from LogSource, o LogOptions, emit func(Line)) error {
	following, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	refused := func(err error) {
		if apierrors.IsForbidden(err) {
			stop(err)
		}
	}
	watching, cancel := context.WithCancel(following)
	defer cancel()
	var reading sync.WaitGroup
	slots := make(chan struct{}, maxStreams)
	options := from.options(o)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) {
			l.LabelSelector, l.FieldSelector = options.LabelSelector, options.FieldSelector
			list, err := core.CoreV1().Pods(from.Namespace).List(ctx, l)
			refused(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
			l.LabelSelector, l.FieldSelector = options.LabelSelector, options.FieldSelector
			events, err := core.CoreV1().Pods(from.Namespace).Watch(ctx, l)
			refused(err)
			return events, err
		},
	}
	seen := map[string]bool{}
	done := make(chan error, 1)
	go func() {
		_, err := watchtools.UntilWithSync(watching, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == watch.Deleted || pod.Status.Phase == corev1.PodPending || seen[string(pod.UID)] {
				return false, nil
			}
			seen[string(pod.UID)] = true
			reading.Go(func() {
				select {
				case slots <- struct{}{}:
					defer func() { <-slots }()
				case <-following.Done():
					return
				}
				refused(readStarting(following, watching, core, pod, o, emit))
			})
			return false, nil
		})
		done <- err
	}()
	err := from.Wait(following)
	if err == nil {
		// The controller may have seen the end of pods whose start this watch has not seen yet.
		select {
		case <-following.Done():
		case <-time.After(retryLog):
		}
	}
	cancel()
	<-done
	reading.Wait()
	if cause := context.Cause(following); apierrors.IsForbidden(cause) {
		return cause
	}
	return err
}

// readStarting reads a pod's log as StreamPod does, when its container has started. It gives up if
// the container has not started when the pod has ended or over is done.
func readStarting(ctx, over context.Context, core kubernetes.Interface, pod *corev1.Pod, o LogOptions, emit func(Line)) error {
	for {
		// A container may start and end after this attempt: the next one reads its log.
		last := over.Err() != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if err := StreamPod(ctx, core, pod, o, emit); last || !apierrors.IsBadRequest(err) {
			return err
		}
		select {
		case <-over.Done():
		case <-time.After(retryLog):
		}
		if now, err := core.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil {
			pod = now
		}
	}
}

// StreamPod reads one pod's log to its end.
func StreamPod(ctx context.Context, core kubernetes.Interface, pod *corev1.Pod, o LogOptions, emit func(Line)) error {
	options := &corev1.PodLogOptions{Container: o.Container, Follow: o.Follow, Previous: o.Previous,
		Timestamps: o.Timestamps, TailLines: o.TailLines}
	named := func(c corev1.Container) bool { return c.Name == o.Container }
	if len(pod.Spec.Containers) > 0 && !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), named) {
		options.Container = pod.Spec.Containers[0].Name
	}
	if o.Since > 0 {
		options.SinceSeconds = ptr.To(int64(o.Since.Seconds()))
	}
	if o.SinceTime != nil {
		options.SinceTime = ptr.To(metav1.NewTime(*o.SinceTime))
	}
	body, err := core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	switch {
	case err != nil && strings.Contains(err.Error(), "no preferred addresses found"):
		return fmt.Errorf("pod %s: its node %s has no address to ask for logs; simulated nodes run nothing", pod.Name,
			pod.Spec.NodeName)
	case err != nil:
		return fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	defer body.Close()
	return lines(body, func(text string) { emit(Line{pod.Name, text}) })
}

// lines splits the content of r into lines of about maxLineBytes at most.
func lines(r io.Reader, each func(string)) error {
	buffered := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := buffered.ReadSlice('\n')
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) && len(line) < maxLineBytes {
			continue
		}
		if len(line) > 0 {
			each(strings.TrimRight(string(line), "\r\n"))
			line = line[:0]
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}
