package localcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"
)

// prober checks the health of components.
type prober struct {
	client *http.Client
	// plain has no certificate of a client, so that the token counts.
	plain *http.Client
	token string // an administrator's token
}

func newProber(files layout, token string) (*prober, error) {
	ca, err := os.ReadFile(files.pki("ca.crt"))
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(files.pki("etcd-client.crt"), files.pki("etcd-client.key"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	with := func(certificates ...tls.Certificate) *http.Client {
		return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: certificates},
			DisableKeepAlives: true,
		}}
	}
	return &prober{token: token, client: with(cert), plain: with()}, nil
}

// healthy returns nil if the component on the port is healthy. nodes is the number of nodes that
// KWOK has to simulate.
func (p *prober) healthy(ctx context.Context, name Component, port, nodes int) error {
	var url, token string
	switch name {
	case Etcd:
		url = loopback("https", port) + "/health"
	case APIServer:
		url, token = loopback("https", port)+"/readyz", p.token
	case ControllerManager, Scheduler:
		url = loopback("https", port) + "/healthz"
	case Kwok:
		url = loopback("http", port) + fmt.Sprintf("/readyz?nodes=%d", nodes)
	case Manager, RealNodes:
		url = loopback("http", port) + "/readyz"
	}
	return p.get(ctx, url, token)
}

// get returns nil if the URL answers with the status 200. token may be empty.
func (p *prober) get(ctx context.Context, url, token string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
