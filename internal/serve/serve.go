// Package serve opens the HTTP servers through which a long-running process is monitored: health,
// metrics, profiles. All paths of one address are served by one server.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Paths holds handlers by address and pattern. Its zero value is empty.
type Paths struct {
	muxes map[string]*http.ServeMux
}

// Handle registers a handler for a net/http pattern at an address. An empty address registers
// nothing.
func (p *Paths) Handle(address, pattern string, h http.Handler) {
	if address == "" {
		return
	}
	if p.muxes == nil {
		p.muxes = map[string]*http.ServeMux{}
	}
	if p.muxes[address] == nil {
		p.muxes[address] = http.NewServeMux()
	}
	p.muxes[address].Handle(pattern, h)
}

// Check registers a handler that responds ok, or status 503 with the error of check.
func (p *Paths) Check(address, pattern string, check func() error) {
	p.Handle(address, pattern, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // an error means that the client has disconnected
	}))
}

const (
	readHeaderTimeout = 5 * time.Second
	// stopTimeout is how long running requests may take after stop; a running profile is cut short.
	stopTimeout = time.Second
)

// Start listens on all addresses, or on none if listening on one of them fails. stop ends the
// servers.
func (p *Paths) Start(log *slog.Logger) (stop func(), err error) {
	var servers []*http.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		for _, s := range servers {
			if s.Shutdown(ctx) != nil {
				_ = s.Close()
			}
		}
	}
	for address, handler := range p.muxes {
		l, err := net.Listen("tcp", address)
		if err != nil {
			stop()
			return nil, err
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout}
		servers = append(servers, s)
		log.Info("serving", "address", l.Addr().String())
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				log.Error("serving ended", "address", address, "error", err)
			}
		}()
	}
	return stop, nil
}
