package kubeclient

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/http2client"
)

// Base returns the URL of cfg's server, the parent of /api and /apis.
func Base(cfg *rest.Config) (*url.URL, error) {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	return base, nil
}

// Calls returns a client for short requests to cfg's server, on up to n connections. It returns nil
// if cfg alone does not determine how connections and requests are made: with a proxy,
// authentication plugins, custom or wrapped transports, or without TLS.
func Calls(cfg *rest.Config, n int) (*http2client.Client, error) {
	host, err := Base(cfg)
	if err != nil {
		return nil, err
	}
	if host.Scheme != "https" || cfg.Transport != nil || cfg.WrapTransport != nil || cfg.Dial != nil ||
		cfg.ExecProvider != nil ||
		cfg.AuthProvider != nil || proxied(cfg, host) {
		return nil, nil
	}
	address := host.Host
	if host.Port() == "" {
		address = net.JoinHostPort(host.Hostname(), "443")
	}
	sessions := tls.NewLRUClientSessionCache(n)
	connect := func() (*tls.Config, error) { // files are read again for each connection
		t, err := rest.TLSConfigFor(cfg)
		if err != nil {
			return nil, err
		}
		if t == nil {
			t = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		t = t.Clone()
		t.NextProtos = []string{"h2"}
		t.ClientSessionCache = sessions
		t.ServerName = cmp.Or(t.ServerName, host.Hostname())
		return t, nil
	}
	if _, err := connect(); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, headerRecorder{})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
	}
	return http2client.New(http2client.Config{
		Address: address, Authority: host.Host, TLS: connect, Connections: n,
		Header: func() ([]http2client.Field, error) { return headerOf(wrapped, host) },
	})
}

func proxied(cfg *rest.Config, host *url.URL) bool {
	proxy := cfg.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	through, err := proxy(&http.Request{URL: host})
	return err != nil || through != nil
}

// headerRecorder is a round tripper that captures the header of a request instead of sending it.
type headerRecorder struct{}

// RoundTrip implements http.RoundTripper.
func (headerRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: r.Header, Body: http.NoBody, Request: r}, nil
}

// headerOf returns the header fields that identify the client: user agent, token, impersonation.
func headerOf(through http.RoundTripper, host *url.URL) ([]http2client.Field, error) {
	answer, err := through.RoundTrip(&http.Request{Method: http.MethodGet, URL: host, Header: http.Header{}})
	if err != nil {
		return nil, err
	}
	var out []http2client.Field
	for name, values := range answer.Header {
		for _, v := range values {
			out = append(out, http2client.Field{Name: strings.ToLower(name), Value: v})
		}
	}
	return out, nil
}

// Decoder returns a function that decodes responses with the types that s registers under gv; pods
// are decoded as by TrimmedCore. The function takes the Content-Type and the body of a response. If
// s does not know gv, only a Status is decoded. A JSON object that does not decode is returned with
// its metadata only, marked by package malformed, so that a response with such an object is no
// error.
func Decoder(gv schema.GroupVersion, s *kruntime.Scheme) func(contentType string, data []byte) (kruntime.Object,
	error) {
	var c kruntime.NegotiatedSerializer
	switch {
	case gv == corev1.SchemeGroupVersion:
		c = trimmedCodecs(s)
	case s.IsVersionRegistered(gv):
		c = lenientCodecs(codecsOf(s), s)
	default:
		c = scheme.Codecs.WithoutConversion()
	}
	decoders := map[string]kruntime.Decoder{}
	for _, info := range c.SupportedMediaTypes() {
		decoders[info.MediaType] = c.DecoderToVersion(info.Serializer, gv)
	}
	return func(contentType string, data []byte) (kruntime.Object, error) {
		media, _, _ := strings.Cut(contentType, ";")
		d, ok := decoders[media]
		if !ok {
			return nil, fmt.Errorf("an answer of type %q", contentType)
		}
		return kruntime.Decode(d, data)
	}
}

// StatusOf returns the Status of a response that reports a failure, or nil.
func StatusOf(decode func(string, []byte) (kruntime.Object, error), contentType string, data []byte) *metav1.Status {
	o, err := decode(contentType, data)
	if err != nil {
		return nil
	}
	s, ok := o.(*metav1.Status)
	if !ok || s.Status == metav1.StatusSuccess {
		return nil
	}
	return s
}
