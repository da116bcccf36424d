package artifacts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
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
	s.client.Transport = &oauth2.Transport{Base: s.client.Transport, Source: source}
	return nil
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
	pause := s.pause
	for attempt := 1; ; attempt++ {
		again, err := s.once(ctx, method, body, use)
		if err == nil {
			return nil
		}
		var address *url.Error
		for errors.As(err, &address) {
			err = address.Err // drops the URL, and that of the token's server
		}
		err = fmt.Errorf("%s %s: %w", method, s.shown(), err)
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
	request, err := http.NewRequestWithContext(ctx, method, s.at.URL, nil)
	if err != nil {
		return false, err
	}
	request.Header = s.header.Clone()
	if body != nil {
		if request.Body, request.ContentLength, err = body(); err != nil {
			return false, err
		}
		if request.ContentLength == 0 {
			request.Body = http.NoBody
		}
	}
	response, err := s.client.Do(request)
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) { // its text has the answer, which may have secrets
		code := refused.Response.StatusCode
		return code == http.StatusTooManyRequests || code >= 500, fmt.Errorf("http.auth.oauth2: no token: %s", refused.Response.Status)
	}
	if err != nil {
		return true, err
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
