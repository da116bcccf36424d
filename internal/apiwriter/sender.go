package apiwriter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/http2client"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// sender makes the requests of writes and reads the server's answers. It knows neither the order of
// writes nor what follows from their failures.
type sender struct {
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory
	metrics *metrics
	base    *url.URL
	calls   *http2client.Client     // nil: conns carry all requests
	conns   []kubeclient.Connection // for requests that calls does not carry
	used    atomic.Int32            // how many connections are used at present
	turn    atomic.Uint32           // round robin among conns
	noHTTP2 atomic.Bool             // the server or proxy does not suit calls
	// decoders maps schema.GroupVersion to a decoder function.
	decoders sync.Map
}

func newSender(cfg *Config) (*sender, error) {
	s := &sender{scheme: cfg.Scheme, codecs: serializer.NewCodecFactory(cfg.Scheme)}
	s.used.Store(1)
	var err error
	if s.conns, err = kubeclient.CheckedConnections(cfg.REST, cfg.Connections); err != nil {
		return nil, err
	}
	if s.base, err = kubeclient.Base(cfg.REST); err != nil {
		return nil, err
	}
	s.calls, err = kubeclient.Calls(cfg.REST, cfg.Connections)
	return s, err
}

// request is one HTTP request about the object of a write.
type request struct {
	verb        string // the verb, as in the audit log
	method      string
	named       bool // addresses the object itself, not its collection
	sub         string
	query       string // without the question mark
	contentType string
	accept      string
	body        []byte
}

// Values of the Accept header: objects in the cheapest encoding; objects in JSON, where this
// package decodes them; or metadata only, which saves work on both sides.
const (
	acceptProtobuf = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	acceptJSON     = runtime.ContentTypeJSON
	acceptMeta     = runtime.ContentTypeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
)

// accept returns the Accept header for a response that contains an object like x's.
func (x *write) accept() string {
	if x.contentType() == runtime.ContentTypeProtobuf {
		return acceptProtobuf
	}
	return acceptJSON
}

// contentType returns the encoding in which x is sent.
func (x *write) contentType() string {
	if _, ok := x.obj.(*unstructured.Unstructured); ok {
		return runtime.ContentTypeJSON
	}
	return kubeclient.ContentType(x.kind.GroupVersion())
}

// answer is the response to a request that the server carried out.
type answer struct {
	contentType string
	body        []byte
}

// path returns the URL path of the object of a write, or of its collection if r is not about a
// named object. It fails with errLocal if a name is missing or is no valid path segment.
func (s *sender) path(x *write, r request) (string, error) {
	var b strings.Builder
	b.Grow(len(s.base.Path) + len(x.kind.Group) + len(x.kind.Version) + len(x.kind.resource) + len(x.name.Namespace) +
		len(x.name.Name) + 40)
	b.WriteString(s.base.Path)
	if x.kind.Group == "" {
		b.WriteString("/api/")
	} else {
		b.WriteString("/apis/")
		b.WriteString(x.kind.Group)
		b.WriteByte('/')
	}
	b.WriteString(x.kind.Version)
	part := func(name string) error {
		if bad := rest.IsValidPathSegmentName(name); len(bad) > 0 {
			return fmt.Errorf("%s %s %w: %q %s", x.kind.Kind, x.name, errLocal, name, strings.Join(bad, ", "))
		}
		b.WriteByte('/')
		b.WriteString(url.PathEscape(name))
		return nil
	}
	var err error
	if x.name.Namespace != "" {
		b.WriteString("/namespaces")
		err = part(x.name.Namespace)
	}
	b.WriteByte('/')
	b.WriteString(x.kind.resource)
	if r.named {
		if x.name.Name == "" {
			return "", fmt.Errorf("%s %s %w: it has no name", x.kind.Kind, x.name, errLocal)
		}
		err = errors.Join(err, part(x.name.Name))
		if r.sub != "" {
			b.WriteByte('/')
			b.WriteString(r.sub)
		}
	}
	return b.String(), err
}

// perConnection is the number of requests in flight per connection. It is below the server's limit
// of streams per connection, and low enough that the lock and the frame order of one connection do
// not delay requests.
const perConnection = 64

// expect sets how many requests may be in flight.
func (s *sender) expect(limit int) {
	s.used.Store(min(int32(len(s.conns)), int32(1+limit/perConnection)))
}

// send makes one request and counts it in the metrics.
func (s *sender) send(ctx context.Context, x *write, r request) (answer, error) {
	started := time.Now()
	a, code, err := s.exchange(ctx, x, r)
	if !errors.Is(err, ErrFenced) && !errors.Is(err, errTermLapsed) {
		s.metrics.sent(x, r.verb, code, time.Since(started))
	}
	return a, err
}

// read gets the object of x from the server.
func (s *sender) read(ctx context.Context, x *write) (Object, error) {
	a, _, err := s.exchange(ctx, x, request{method: http.MethodGet, named: true, accept: x.accept()})
	if err != nil {
		return nil, err
	}
	return s.decoded(x, a)
}

// exchange makes one request and returns its answer and HTTP status code. The code is 0 if no
// response arrived.
func (s *sender) exchange(ctx context.Context, x *write, r request) (answer, int, error) {
	path, err := s.path(x, r)
	if err != nil {
		return answer{}, 0, err
	}
	if r.query != "" {
		path += "?" + r.query
	}
	fields := make([]http2client.Field, 0, 4)
	fields = append(fields, http2client.Field{Name: "accept", Value: r.accept})
	if r.body != nil {
		fields = append(fields, http2client.Field{Name: "content-type", Value: r.contentType})
	}
	if x.as != nil {
		fields = append(fields, http2client.Field{Name: "impersonate-user", Value: x.as.User})
		for _, g := range x.as.Groups {
			fields = append(fields, http2client.Field{Name: "impersonate-group", Value: g})
		}
		for key, value := range x.as.Extra {
			// A slash is not allowed in the name of a field; the server unescapes it.
			name := "impersonate-extra-" + strings.ReplaceAll(strings.ToLower(key), "/", "%2f")
			fields = append(fields, http2client.Field{Name: name, Value: value})
		}
	}
	var got http2client.Answer
	var asked http2client.Term
	if r.method != http.MethodGet {
		if err := x.check(); err != nil {
			return answer{}, 0, err
		}
		asked = x.sendTerm()
	}
	err = http2client.ErrNoHTTP2
	if s.calls != nil && !s.noHTTP2.Load() {
		got, err = s.calls.Do(ctx, int(s.used.Load()),
			http2client.Request{Method: r.method, Path: path, Header: fields, Body: r.body, Term: asked})
		if errors.Is(err, http2client.ErrNoHTTP2) {
			s.noHTTP2.Store(true)
		}
	}
	if errors.Is(err, http2client.ErrTooLong) || errors.Is(err, http2client.ErrNoHTTP2) {
		got, err = s.byClient(ctx, asked, r, path, fields)
	}
	if err != nil {
		return answer{}, 0, err
	}
	if got.Code < http.StatusOK || got.Code > http.StatusPartialContent {
		return answer{}, got.Code, s.refusal(x, r, got)
	}
	return answer{got.ContentType, got.Body}, got.Code, nil
}

// byClient makes a request through Go's HTTP client.
func (s *sender) byClient(ctx context.Context, asked http2client.Term, r request, path string, fields []http2client.Field) (
	http2client.Answer, error) {
	conn := s.conns[s.turn.Add(1)%uint32(s.used.Load())]
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	// The path is already escaped.
	req, err := http.NewRequestWithContext(ctx, r.method, s.base.Scheme+"://"+s.base.Host+path, body)
	if err != nil {
		return http2client.Answer{}, fmt.Errorf("%w: %w", errLocal, err)
	}
	for _, f := range fields {
		req.Header.Add(f.Name, f.Value)
	}
	defer conn.Terms.Add(asked)()
	resp, err := conn.Do(req)
	if err != nil {
		return http2client.Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return http2client.Answer{
		Code: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), RetryAfter: resp.Header.Get("Retry-After"),
		Body: data,
	}, err
}

// messageMax is the maximum number of bytes quoted from a response that is not a Status of the API
// server.
const messageMax = 2048

// refusal returns the error that a response contains.
func (s *sender) refusal(x *write, r request, a http2client.Answer) error {
	if status := kubeclient.StatusOf(s.decoder(x.kind.GroupVersion()), a.ContentType, a.Body); status != nil {
		return apierrors.FromObject(status)
	}
	// The response comes from a proxy in front of the server, or from the server before it routes
	// the request.
	seconds, err := strconv.Atoi(a.RetryAfter)
	if err != nil {
		seconds = 0
	}
	message := strings.TrimSpace(string(a.Body[:min(len(a.Body), messageMax)]))
	if message == "" {
		message = "unknown"
	}
	resource := schema.GroupResource{Group: x.kind.Group, Resource: x.kind.resource}
	return apierrors.NewGenericServerResponse(a.Code, strings.ToLower(r.method), resource, x.name.Name, message, seconds,
		true)
}

// decoder returns a function that decodes responses with types of a group and version.
func (s *sender) decoder(gv schema.GroupVersion) func(string, []byte) (runtime.Object, error) {
	if d, ok := s.decoders.Load(gv); ok {
		return d.(func(string, []byte) (runtime.Object, error))
	}
	d, _ := s.decoders.LoadOrStore(gv, kubeclient.Decoder(gv, s.scheme))
	return d.(func(string, []byte) (runtime.Object, error))
}

// decoded returns the object in an answer, as the Go type of x's object.
func (s *sender) decoded(x *write, a answer) (Object, error) {
	if _, ok := x.obj.(*unstructured.Unstructured); ok {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(a.body); err != nil {
			return nil, fmt.Errorf("the answer about %s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
		}
		return u, nil
	}
	o, err := s.decoder(x.kind.GroupVersion())(a.contentType, a.body)
	if err != nil {
		return nil, fmt.Errorf("the answer about %s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	obj, ok := o.(Object)
	if !ok {
		return nil, fmt.Errorf("the answer about %s %s %w: it is a %T", x.kind.Kind, x.name, errLocal, o)
	}
	return obj, nil
}

// sendObject sends a request and decodes the object in the response.
func (s *sender) sendObject(ctx context.Context, x *write, r request) (Object, error) {
	a, err := s.send(ctx, x, r)
	if err != nil {
		return nil, err
	}
	return s.decoded(x, a)
}

// sendAsWanted is sendObject if the caller has a done function. Otherwise it asks for metadata only
// and decodes nothing.
func (s *sender) sendAsWanted(ctx context.Context, x *write, r request) (Object, error) {
	if x.done != nil {
		return s.sendObject(ctx, x, r)
	}
	r.accept = acceptMeta
	_, err := s.send(ctx, x, r)
	return nil, err
}

// sendForMetadata sends a request and returns only the name, UID and resource version of the
// resulting object.
func (s *sender) sendForMetadata(ctx context.Context, x *write, r request) (Object, error) {
	r.accept = acceptMeta
	a, err := s.send(ctx, x, r)
	if err != nil {
		return nil, err
	}
	written := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: x.name.Namespace, Name: x.name.Name}}
	if err := identify(a.body, &written.ObjectMeta); err != nil {
		return nil, fmt.Errorf("the answer about %s %s %w: %w", x.kind.Kind, x.name, errLocal, err)
	}
	return written, nil
}
