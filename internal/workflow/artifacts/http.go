package artifacts

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	// httpAttempts is the maximum number of attempts at a request that gets no answer or a
	// temporary refusal; httpPause is the delay before the second attempt, which doubles each time.
	httpAttempts = 5
	httpPause    = time.Second
)

// httpStore keeps an artifact behind a URL, with GET, PUT and DELETE.
type httpStore struct {
	at     *execapi.HTTP
	header http.Header
	client *http.Client
	pause  time.Duration
}

func openHTTP(at *execapi.HTTP) (*httpStore, error) {
	s := &httpStore{at: at, header: http.Header{}, client: &http.Client{}, pause: httpPause}
	s.client.CheckRedirect = s.redirect
	for _, h := range at.Headers {
		value, err := secrets(h.File)
		if err != nil {
			return nil, err
		}
		if h.File == "" {
			value[0] = h.Value
		}
		s.header.Set(h.Name, value[0])
	}
	login, err := secrets(at.Username, at.Password)
	if err != nil {
		return nil, err
	}
	if login[0] != "" || login[1] != "" {
		(&http.Request{Header: s.header}).SetBasicAuth(login[0], login[1])
	}
	return s, s.authenticate()
}

// authenticate sets the client's certificate and its source of tokens.
func (s *httpStore) authenticate() error {
	if s.at.ClientCert != "" {
		pair, err := secrets(s.at.ClientCert, s.at.ClientKey)
		if err != nil {
			return err
		}
		certificate, err := tls.X509KeyPair([]byte(pair[0]), []byte(pair[1]))
		if err != nil {
			return fmt.Errorf("http.auth.clientCert: %w", err)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		s.client.Transport = transport
	}
	o := s.at.OAuth2
	if o == nil {
		return nil
	}
	values, err := secrets(o.ClientID, o.ClientSecret, o.TokenURL)
	if err != nil {
		return err
	}
	config := clientcredentials.Config{
		ClientID: values[0], ClientSecret: values[1], TokenURL: values[2], Scopes: o.Scopes, EndpointParams: o.Parameters,
	}
	// Tokens are requested with the client's certificate, too.
	source := config.TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{
		Transport: s.client.Transport, Timeout: tokenTimeout,
	}))
	s.client.Transport = &tokenTransport{
		at: s.at.URL, other: cmp.Or(s.client.Transport, http.DefaultTransport),
		own: &oauth2.Transport{Base: s.client.Transport, Source: source},
	}
	return nil
}

// tokenTransport sends a token to the server of the artifact, and not to those that it refers to.
type tokenTransport struct {
	at         string
	own, other http.RoundTripper
}

func (t *tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if at, err := url.Parse(t.at); err != nil || !sameServer(request.URL, at) {
		return t.other.RoundTrip(request)
	}
	return t.own.RoundTrip(request)
}

func sameServer(a, b *url.URL) bool { return a.Host == b.Host && a.Scheme == b.Scheme }

// httpRedirects bounds the number of redirects.
const httpRedirects = 10

// redirect lets a request follow a redirect, without headers of ours if it leads to another server:
// they may be secret.
func (s *httpStore) redirect(next *http.Request, before []*http.Request) error {
	if len(before) >= httpRedirects {
		return fmt.Errorf("stopped after %d redirects", httpRedirects)
	}
	if !sameServer(next.URL, before[0].URL) {
		for name := range s.header {
			next.Header.Del(name)
		}
	}
	return nil
}

// webHDFS is the part of a path that is the same for all servers of WebHDFS.
const webHDFS = "/webhdfs/v1/"

// address returns the URL for a method. URLs of WebHDFS name the operation, too: an artifact that
// was written with op=CREATE is read with op=OPEN.
func (s *httpStore) address(method string) (address string, webhdfs bool) {
	u, err := url.Parse(s.at.URL)
	if err != nil || !strings.Contains(u.Path, webHDFS) {
		return s.at.URL, false
	}
	query := u.Query()
	for key := range query {
		if strings.EqualFold(key, "op") {
			query.Set(key, map[string]string{http.MethodGet: "OPEN", http.MethodPut: "CREATE", http.MethodDelete: "DELETE"}[method])
			webhdfs = true
		}
	}
	u.RawQuery = query.Encode()
	return u.String(), webhdfs
}

// tokenTimeout bounds one request for a token.
const tokenTimeout = time.Minute

// shown returns the URL without the parts that may be secret.
func (s *httpStore) shown() string {
	u, err := url.Parse(s.at.URL)
	if err != nil {
		return "the URL"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}

// do sends a request until it gets a final answer, and passes the response body to use.
func (s *httpStore) do(ctx context.Context, method string, body func() (io.ReadCloser, int64, error), use func(io.Reader) error) error {
	err := retried(ctx, s.pause, func() (bool, error) { return s.once(ctx, method, body, use) })
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, s.shown(), err)
	}
	return nil
}

// retried calls once until it succeeds or says that there is no use in another attempt. The error
// has no URL: it may have secrets.
func retried(ctx context.Context, pause time.Duration, once func() (again bool, err error)) error {
	for attempt := 1; ; attempt++ {
		again, err := once()
		if err == nil {
			return nil
		}
		var address *url.Error
		for errors.As(err, &address) {
			err = address.Err // drops the URL, and that of the token's server
		}
		if !again || attempt == httpAttempts {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
			pause *= 2
		}
	}
}

func (s *httpStore) once(ctx context.Context, method string, body func() (io.ReadCloser, int64, error), use func(io.Reader) error) (again bool, err error) {
	address, webhdfs := s.address(method)
	if webhdfs && body != nil {
		if address, again, err = s.dataNode(ctx, address); err != nil {
			return again, err
		}
	}
	request, err := s.request(ctx, method, address)
	if err != nil {
		return false, err
	}
	if body != nil {
		if request.Body, request.ContentLength, err = body(); err != nil {
			return false, err
		}
		request.GetBody = func() (io.ReadCloser, error) {
			again, _, err := body()
			return again, err
		}
		if request.ContentLength == 0 {
			request.Body.Close()
			request.Body, request.GetBody = http.NoBody, func() (io.ReadCloser, error) { return http.NoBody, nil }
		}
	}
	response, err := s.client.Do(request)
	if err != nil {
		return requestError("http.auth.oauth2", err)
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusNotFound:
		return false, fmt.Errorf("%s: %w", response.Status, os.ErrNotExist)
	case code == http.StatusTooManyRequests || code >= 500:
		return true, errors.New(response.Status)
	case code >= 300:
		return false, errors.New(response.Status)
	}
	if use == nil {
		return false, nil
	}
	return true, use(response.Body)
}

// request returns a request without a body. It has the headers of the artifact if it is for the
// artifact's server.
func (s *httpStore) request(ctx context.Context, method, address string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	if at, err := url.Parse(s.at.URL); err == nil && sameServer(request.URL, at) {
		request.Header = s.header.Clone()
	}
	return request, nil
}

// dataNode asks the name node of WebHDFS where the content of a file goes.
func (s *httpStore) dataNode(ctx context.Context, address string) (to string, again bool, err error) {
	request, err := s.request(ctx, http.MethodPut, address)
	if err != nil {
		return "", false, err
	}
	asking := *s.client
	asking.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := asking.Do(request)
	if err != nil {
		again, err = requestError("http.auth.oauth2", err)
		return "", again, err
	}
	response.Body.Close()
	code := response.StatusCode
	if code/100 != 3 {
		return "", code == http.StatusTooManyRequests || code >= 500, fmt.Errorf("%s, and no data node", response.Status)
	}
	at, err := response.Location()
	if err != nil {
		return "", false, errors.New("the name node names no data node")
	}
	return at.String(), false, nil
}

func (s *httpStore) load(ctx context.Context, to string) error {
	return s.do(ctx, http.MethodGet, nil, func(r io.Reader) error {
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	})
}

func (s *httpStore) save(ctx context.Context, from source) error {
	dir, err := from.isDir()
	if err != nil {
		return err
	}
	if dir {
		return errors.New("http: a directory has to be archived")
	}
	return s.do(ctx, http.MethodPut, func() (io.ReadCloser, int64, error) {
		f, err := from.root.Open(from.name)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, 0, err
		}
		return f, info.Size(), nil
	}, nil)
}

func (s *httpStore) remove(ctx context.Context) error {
	err := s.do(ctx, http.MethodDelete, nil, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
