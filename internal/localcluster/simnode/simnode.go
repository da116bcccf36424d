package simnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
)

// Options configures the simulation.
type Options struct {
	// NodeSelector is the label selector of the nodes to simulate.
	NodeSelector string
	// HealthPort is a loopback port that serves /healthz, and /readyz?nodes=N, which succeeds once
	// N nodes are simulated.
	HealthPort int
	// Parallelism is the number of pods written concurrently.
	Parallelism uint
	// LeaseSeconds, if not 0, is the duration of each node's lease, which is renewed after a
	// quarter of that.
	LeaseSeconds uint
}

const (
	// DefaultParallelism is high enough that more would not raise the API server's throughput for
	// small writes, on any machine that simulates nodes.
	DefaultParallelism = 32
	// nodeParallelism is the number of nodes written concurrently. Such writes are rare.
	nodeParallelism = 4
	// podCIDR satisfies KWOK's configuration; KWOK has no pods to give addresses to.
	podCIDR = "10.1.0.0/16"
)

// Run simulates until ctx is done.
func Run(ctx context.Context, config *rest.Config, opts Options) error {
	if opts.Parallelism == 0 {
		opts.Parallelism = DefaultParallelism
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = "lockstep-kube/kwok"
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return retrier{rt} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	controller, err := controllers.NewController(controllers.Config{
		Clock:                        clock.RealClock{},
		TypedClient:                  withoutPods{client},
		RESTClient:                   client.CoreV1().RESTClient(),
		ManageNodesWithLabelSelector: opts.NodeSelector,
		LocalStages:                  stages(),
		CIDR:                         podCIDR,
		NodeIP:                       hostIP,
		NodePlayStageParallelism:     nodeParallelism,
		ID:                           "lockstep",
		NodeLeaseDurationSeconds:     opts.LeaseSeconds,
		NodeLeaseParallelism:         nodeParallelism,
		FuncMap:                      templateFunctions(time.Now),
	})
	if err != nil {
		return err
	}
	pods, err := newKubelets(client, opts.NodeSelector, int(opts.Parallelism), clock.RealClock{})
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return pods.run(ctx) })
	group.Go(func() error {
		return serveHealth(ctx, opts.HealthPort, func() int { return min(pods.simulated(), len(controller.ListNodes())) })
	})
	return group.Wait()
}

// withoutPods is a client that sees no pods. KWOK's controller watches all pods, and would spend as
// much CPU time on each event as if it had to act on it.
type withoutPods struct{ kubernetes.Interface }

func (c withoutPods) CoreV1() clientcorev1.CoreV1Interface {
	return coreWithoutPods{c.Interface.CoreV1()}
}

type coreWithoutPods struct{ clientcorev1.CoreV1Interface }

func (c coreWithoutPods) Pods(namespace string) clientcorev1.PodInterface {
	return noPods{c.CoreV1Interface.Pods(namespace)}
}

type noPods struct{ clientcorev1.PodInterface }

func (noPods) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (noPods) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	events := make(chan watch.Event)
	quiet := watch.NewProxyWatcher(events)
	context.AfterFunc(ctx, func() { close(events) })
	return quiet, nil
}

func serveHealth(ctx context.Context, port int, nodes func() int) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		want, _ := strconv.Atoi(r.URL.Query().Get("nodes"))
		if have := nodes(); have < want {
			http.Error(w, fmt.Sprintf("%d of %d nodes", have, want), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// retrier repeats patches whose connection failed. KWOK itself only repeats refused writes, so the
// status of a node could stay outdated after a restart of the API server. KWOK's status patches are
// safe to repeat.
type retrier struct{ next http.RoundTripper }

const (
	retries    = 60
	retryDelay = time.Second
)

func (r retrier) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPatch || req.GetBody == nil {
		return r.next.RoundTrip(req)
	}
	for attempt := 0; ; attempt++ {
		resp, err := r.next.RoundTrip(req)
		if err == nil || attempt == retries || req.Context().Err() != nil {
			return resp, err
		}
		select {
		case <-req.Context().Done():
			return nil, err
		case <-time.After(retryDelay):
		}
		body, bodyErr := req.GetBody()
		if bodyErr != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Body = body
	}
}
