package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Flag is the manager's flag whose values are Config.Allow.
const Flag = "--allow-requests-to"

// The limits of one request.
const (
	dialTimeout    = 10 * time.Second
	resolveTimeout = 5 * time.Second
	answerTimeout  = 5 * time.Minute // with all redirects, to the last byte of the body
	headerBytesMax = 256 << 10
	redirectsMax   = 5
	connsPerHost   = 16
)

// Config configures a Guard.
type Config struct {
	// Allow lists addresses, networks and host names that are not public but may be requested:
	// 10.0.0.0/8, 10.1.2.3, charts.example.com, *.apps.svc.cluster.local. A host name allows all of
	// its addresses. Metadata addresses are allowed only by the exact address, or by the exact name
	// of a metadata service.
	Allow []string
	// Proxy returns the proxy for a request, or nil for none. Default: according to HTTP_PROXY,
	// HTTPS_PROXY and NO_PROXY.
	Proxy func(*url.URL) (*url.URL, error)
}

// Guard sends requests to allowed destinations only. It is safe for concurrent use.
type Guard struct {
	allowed  *allowed
	resolver *net.Resolver
	proxy    func(*url.URL) (*url.URL, error)
	direct   *http.Transport
	proxied  *http.Transport
	client   *http.Client
}

// RefusedError says that a request was not sent because of its destination.
type RefusedError struct {
	// Host is the host's name or address as requested.
	Host string
	why  class
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the manager does not connect to %s, which is %s, unless its flag %s lists it", e.Host, e.why, Flag)
}

// New returns a Guard. It fails if an entry of Allow is invalid, and names the entry.
func New(cfg Config) (*Guard, error) {
	allow, err := parseAllowed(cfg.Allow)
	if err != nil {
		return nil, err
	}
	g := &Guard{allowed: allow, resolver: net.DefaultResolver, proxy: cfg.Proxy}
	if g.proxy == nil {
		g.proxy = httpproxy.FromEnvironment().ProxyFunc()
	}
	g.direct = transport(g.DialContext, nil)
	// The operator of the manager configures its proxies: connections to proxies are not judged,
	// but the destinations requested from them are.
	g.proxied = transport((&net.Dialer{Timeout: dialTimeout}).DialContext, func(r *http.Request) (*url.URL, error) {
		through, err := g.proxy(r.URL)
		if err == nil && through == nil {
			err = errProxy // a direct connection would not be judged
		}
		return through, err
	})
	g.client = &http.Client{Transport: roundTripper{g}, CheckRedirect: redirect, Timeout: answerTimeout}
	return g, nil
}

func transport(dial func(context.Context, string, string) (net.Conn, error), proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	return &http.Transport{
		Proxy: proxy, DialContext: dial, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: answerTimeout,
		MaxResponseHeaderBytes: headerBytesMax, MaxIdleConns: connsPerHost, MaxIdleConnsPerHost: 2, MaxConnsPerHost: connsPerHost,
		IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
}

// DialContext connects to host:port like net.Dialer, if the address that host resolves to is
// allowed.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &explained{text: "the address has no port"}
	}
	host = normal(host)
	if err := g.allowed.judgeName(host); err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout, Resolver: g.resolver, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return &RefusedError{Host: host, why: "at an address that cannot be judged"}
		}
		return g.allowed.judge(host, to.Addr())
	}}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, explain(err)
	}
	return conn, nil
}

// judgeProxied judges a host that a proxy is to connect to: its name, and the addresses to which it
// resolves in this process. A name that does not resolve here is left to the proxy.
func (g *Guard) judgeProxied(ctx context.Context, host string) error {
	host = normal(host)
	if err := g.allowed.judgeName(host); err != nil {
		return err
	}
	if address, err := netip.ParseAddr(host); err == nil {
		return g.allowed.judge(host, address)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addresses, err := g.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	for _, a := range addresses {
		if err := g.allowed.judge(host, a); err != nil {
			return err
		}
	}
	return nil
}

// roundTripper sends one request; each redirect is a request of its own.
type roundTripper struct{ *Guard }

func (g roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := checkScheme(r.URL); err != nil {
		return nil, err
	}
	through, err := g.proxy(r.URL)
	if err != nil {
		return nil, errProxy
	}
	if through == nil {
		return g.direct.RoundTrip(r)
	}
	if err := g.judgeProxied(r.Context(), r.URL.Hostname()); err != nil {
		return nil, err
	}
	return g.proxied.RoundTrip(r)
}

var errProxy = &explained{text: "the proxy that the manager's environment names cannot be used"}

func checkScheme(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return &explained{text: "the address does not begin with http:// or https://"}
	}
	return nil
}

var errRedirects = fmt.Errorf("more than %d redirects", redirectsMax)

// carried lists the headers that are kept on a redirect to another server than the first. All other
// headers may contain secrets.
var carried = []string{"Accept", "Accept-Encoding", "Content-Type", "User-Agent"}

func redirect(next *http.Request, before []*http.Request) error {
	if len(before) > redirectsMax {
		return errRedirects
	}
	if err := checkScheme(next.URL); err != nil {
		return &explained{text: "a redirect: " + err.Error()}
	}
	if first := before[0].URL; next.URL.Host != first.Host || next.URL.Scheme != first.Scheme {
		kept := http.Header{}
		for _, name := range carried {
			if v := next.Header.Values(name); v != nil {
				kept[name] = v
			}
		}
		next.Header = kept
	}
	return nil
}

// Do sends a request and returns the response, whose body the caller must close. Errors name the
// method and the address without its query, and contain nothing of the response.
func (g *Guard) Do(r *http.Request) (*http.Response, error) {
	res, err := g.client.Do(r)
	if err != nil {
		return nil, &requestError{method: r.Method, url: shown(r.URL), err: explain(err)}
	}
	// Replace the server's text.
	res.Status = fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode))
	res.Body = &body{res.Body}
	return res, nil
}

// Client returns a client for libraries that take one. It judges each request as Do does, and words
// errors likewise.
func (g *Guard) Client() *http.Client {
	return &http.Client{Transport: explaining{g}, CheckRedirect: redirect, Timeout: answerTimeout}
}

// explaining is a roundTripper with errors worded by this package.
type explaining struct{ *Guard }

func (g explaining) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := roundTripper(g).RoundTrip(r)
	if err != nil {
		return nil, explain(err)
	}
	return res, nil
}

// shown returns an address without parts that may be secret.
func shown(u *url.URL) string {
	clean := *u
	clean.User, clean.RawQuery, clean.Fragment = nil, "", ""
	return clean.String()
}

// body is the body of a response, with errors worded by this package.
type body struct{ io.ReadCloser }

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = explain(err)
	}
	return n, err
}

// ErrTooLong says that a response has more bytes than the limit.
var ErrTooLong = errors.New("the answer is too long")

// ReadAll reads the body of a response, of up to limit bytes, and closes it. The limit applies to
// the bytes after decompression.
func ReadAll(res *http.Response, limit int64) ([]byte, error) {
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLong, limit)
	}
	return data, nil
}
