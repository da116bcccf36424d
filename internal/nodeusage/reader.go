package nodeusage

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/scheduler/usage"
)

// timeoutMax bounds one reading.
const timeoutMax = 20 * time.Second

// Config configures a Reader. All fields but Clock, Metrics and Log are required.
type Config struct {
	Usage *usage.Config
	// API is a client of the API server.
	API rest.Interface
	// Nodes returns the nodes of the cluster.
	Nodes func() []*corev1.Node
	// Take gets the use of the nodes that are known, by name, after each reading.
	Take    func(map[string]usage.Use)
	Clock   clock.WithTicker
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Reader reads the use of nodes.
type Reader struct {
	cfg    Config
	source source
	failed prometheus.Counter
	broken string // the error of the last reading; empty if it succeeded
}

// source reads the use of nodes.
type source interface {
	read(ctx context.Context, nodes []*corev1.Node, now time.Time) (map[string]usage.Use, error)
}

// New returns a Reader, which does nothing before Run.
func New(cfg Config) (*Reader, error) {
	if cfg.Usage == nil || cfg.Nodes == nil || cfg.Take == nil {
		return nil, errors.New("nodeusage: incomplete configuration")
	}
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	r := &Reader{cfg: cfg, source: metricsAPI{cfg.API}, failed: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "lockstep", Subsystem: "nodeusage", Name: "failed_readings_total",
		Help: "Readings of the use of nodes that failed.",
	})}
	if cfg.Usage.Source.Prometheus != "" {
		p, err := newPrometheus(cfg.Usage.Source)
		if err != nil {
			return nil, err
		}
		r.source = p
	}
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(r.failed); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Run reads until ctx is done.
func (r *Reader) Run(ctx context.Context) {
	ticker := r.cfg.Clock.NewTicker(r.cfg.Usage.Interval)
	defer ticker.Stop()
	for {
		r.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// read makes one reading. Errors are logged when they begin and when they end.
func (r *Reader) read(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, min(timeoutMax, r.cfg.Usage.Interval))
	defer cancel()
	uses, err := r.source.read(bounded, r.cfg.Nodes(), r.cfg.Clock.Now())
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.failed.Inc()
		if r.broken == "" {
			r.cfg.Log.Error("the use of nodes cannot be read; nodes count as little used once their measurements are too old", "error", err)
		}
		r.broken = err.Error()
	default:
		if r.broken != "" {
			r.cfg.Log.Info("the use of nodes is read again", "nodes", len(uses))
		}
		r.broken = ""
		r.cfg.Take(uses)
	}
}
