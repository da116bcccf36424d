package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readiness says whether the manager is doing its work, or is a healthy stand-by.
type readiness struct{ atomic.Bool }

func (r *readiness) set(ready bool) { r.Store(ready) }

// serve opens the HTTP servers and returns how to close them.
func (m *Manager) serve() (stop func(), err error) {
	muxes := map[string]*http.ServeMux{}
	mux := func(address string) *http.ServeMux {
		if muxes[address] == nil {
			muxes[address] = http.NewServeMux()
		}
		return muxes[address]
	}
	if a := m.cfg.MetricsAddress; a != "" {
		mux(a).Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
		if m.cfg.Profiling {
			mux(a).HandleFunc("/debug/pprof/", pprof.Index)
			mux(a).HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
			mux(a).HandleFunc("/debug/pprof/profile", pprof.Profile)
			mux(a).HandleFunc("/debug/pprof/symbol", pprof.Symbol)
			mux(a).HandleFunc("/debug/pprof/trace", pprof.Trace)
		}
	}
	if a := m.cfg.HealthAddress; a != "" {
		mux(a).HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, "ok") })
		mux(a).HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, m.ready.Load(), "ok", "not leading, or still reading the cluster")
		})
	}
	var servers []*http.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, s := range servers {
			if s.Shutdown(ctx) != nil {
				_ = s.Close() // a profile that is being taken is cut short
			}
		}
	}
	for address, handler := range muxes {
		l, err := net.Listen("tcp", address)
		if err != nil {
			stop()
			return nil, fmt.Errorf("manager: %w", err)
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, s)
		m.log.Info("serving", "address", l.Addr().String())
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				m.log.Error("serving ended", "address", address, "error", err)
			}
		}()
	}
	return stop, nil
}

// answer says ok, or the last of texts.
func answer(w http.ResponseWriter, ok bool, texts ...string) {
	text := texts[0]
	if !ok {
		text = texts[len(texts)-1]
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprintln(w, text) // the client is gone
}
