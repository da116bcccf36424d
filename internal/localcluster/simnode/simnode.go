package simnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
)

// Options of the simulation.
type Options struct {
	// NodeSelector is the label selector of the nodes to simulate.
	NodeSelector string
	// HealthPort serves /healthz, and /readyz?nodes=N which is OK once N nodes are simulated. On loopback.
	HealthPort int
	// Parallelism is the number of pods written at once.
	Parallelism uint
	// LeaseSeconds, if not 0, is how long a lease lasts that each node renews after a quarter of that.
	LeaseSeconds uint
}

const (
	// DefaultParallelism is past where the API server's throughput for small writes is flat on any machine that
	// simulates nodes.
	DefaultParallelism = 32
	// nodeParallelism is the number of nodes written at once. Their writes are rare.
	nodeParallelism = 4
	// syncParallelism is the number of nodes whose pods are listed at once when the node is seen first.
	syncParallelism = 4
	// podCIDR is where pods' addresses would come from.
	podCIDR = "10.1.0.0/16"
)

// Run simulates until ctx ends.
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
		TypedClient:                  client,
		RESTClient:                   client.CoreV1().RESTClient(),
		ManageNodesWithLabelSelector: opts.NodeSelector,
		LocalStages:                  stages(),
		CIDR:                         podCIDR,
		NodeIP:                       "127.0.0.1",
		PodPlayStageParallelism:      opts.Parallelism,
		NodePlayStageParallelism:     nodeParallelism,
		PodsOnNodeSyncParallelism:    syncParallelism,
		ID:                           "lockstep",
		NodeLeaseDurationSeconds:     opts.LeaseSeconds,
		NodeLeaseParallelism:         nodeParallelism,
		FuncMap:                      templateFunctions(time.Now),
	})
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	return serveHealth(ctx, opts.HealthPort, func() int { return len(controller.ListNodes()) })
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

// retrier repeats writes that died with their connection. KWOK drops those (it only repeats what was refused), and the
// pod would wait forever when the API server is restarted. Its patches of a status and its deletes can be repeated.
type retrier struct{ next http.RoundTripper }

const (
	retries    = 60
	retryDelay = time.Second
)

func (r retrier) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPatch && req.Method != http.MethodDelete || req.GetBody == nil {
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
