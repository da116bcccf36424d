// Package serve opens the HTTP servers by which a process that runs all the time is asked how it is: health, metrics,
// profiles. What has one address is served by one server.
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

// Paths are handlers by address and pattern. Its zero value is empty.
type Paths struct {
	muxes map[string]*http.ServeMux
}

// Handle serves a pattern of net/http at an address. An empty address serves nothing.
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

// Check serves ok, or status 503 and the error of check.
func (p *Paths) Check(address, pattern string, check func() error) {
	p.Handle(address, pattern, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // the client is gone
	}))
}

const (
	readHeaderTimeout = 5 * time.Second
	// stopTimeout is how long requests under way may take after the end; a profile that is being taken is cut short.
	stopTimeout = time.Second
)

// Start listens on all addresses, or on none if one cannot be had. stop ends the servers.
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
