package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/mail"
	"net/smtp"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/egress"
)

// Bounds on requests of steps and plans to other systems.
const (
	requestTimeout    = 30 * time.Second
	requestTimeoutMax = 5 * time.Minute
	responseBytesMax  = 1 << 20
)

// httpRequest is an HTTP request of a step or a plan.
type httpRequest struct {
	Method  string `json:"method"`
	URL     string `json:"url"`
	Request struct {
		Timeout           string            `json:"timeout,omitempty"`
		Body              string            `json:"body,omitempty"`
		Header            map[string]string `json:"header,omitempty"`
		HeadersFromSecret []struct {
			Name   string `json:"name"`
			Secret string `json:"secret"`
			Key    string `json:"key"`
		} `json:"headersFromSecret,omitempty"`
	} `json:"request"`
	TLS *struct{} `json:"tls_config,omitempty"`

	timeout time.Duration
}

func newRequest(params map[string]any) (*httpRequest, error) {
	data, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	r := &httpRequest{timeout: requestTimeout}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("the request: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

// check rejects a request that cannot be sent, and sets defaults.
func (r *httpRequest) check() error {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is not an address that begins with http:// or https://", r.URL)
	}
	if r.TLS != nil {
		return errors.New("tls_config is not supported")
	}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	if t := r.Request.Timeout; t != "" {
		if r.timeout, err = time.ParseDuration(t); err != nil || r.timeout <= 0 || r.timeout > requestTimeoutMax {
			return fmt.Errorf("timeout %q is not a duration of up to %s", t, requestTimeoutMax)
		}
	}
	return nil
}

// request sends a step's request and returns the response, whatever its status code. Headers from
// Secrets are read with the rights of as.
func (c *Controller) request(ctx context.Context, as *apiwriter.Identity, namespace string, r *httpRequest) (render.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	sent := *r
	sent.Request.Header = maps.Clone(r.Request.Header)
	for _, h := range r.Request.HeadersFromSecret {
		value, err := c.secretValue(ctx, as, namespace, h.Secret, h.Key)
		if err != nil {
			return render.Answer{}, fmt.Errorf("header %s: %w", h.Name, err)
		}
		if sent.Request.Header == nil {
			sent.Request.Header = map[string]string{}
		}
		sent.Request.Header[h.Name] = value
	}
	body, headers, status, err := c.exchange(ctx, &sent)
	if err != nil {
		return render.Answer{}, err
	}
	header := map[string]any{}
	for k, values := range headers {
		header[k] = anyList(values)
	}
	return render.Answer{Returns: map[string]any{"body": string(body), "header": header, "statusCode": int64(status)}}, nil
}

// exchange sends a request and returns the response, whatever its status code.
func (c *Controller) exchange(ctx context.Context, r *httpRequest) (body []byte, header http.Header, status int, _ error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, strings.NewReader(r.Request.Body))
	if err != nil {
		return nil, nil, 0, err
	}
	for k, v := range r.Request.Header {
		req.Header.Set(k, v)
	}
	res, err := c.cfg.Requests.Do(req)
	if err != nil {
		return nil, nil, 0, err
	}
	if body, err = egress.ReadAll(res, responseBytesMax); err != nil {
		return nil, nil, 0, fmt.Errorf("%s %s: %w", r.Method, req.URL.Host, err)
	}
	return body, res.Header, res.StatusCode, nil
}

// secretValue returns one value of a Secret in namespace.
func (c *Controller) secretValue(ctx context.Context, as *apiwriter.Identity, namespace, name, key string) (string, error) {
	t := c.targets.local
	m, err := t.kinds.mapping(schema.GroupVersionKind{Version: "v1", Kind: "Secret"})
	if err != nil {
		return "", err
	}
	client, err := t.reader(as)
	if err != nil {
		return "", err
	}
	u, err := client.Resource(m.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	data, err := plan.SecretData(u.Object)
	if err != nil {
		return "", err
	}
	value, ok := data[key]
	if !ok {
		return "", fmt.Errorf("secret %s has no key %s", name, key)
	}
	return strings.TrimSpace(string(value)), nil
}

// message is an e-mail that a step sends.
type message struct {
	From struct {
		Address  string `json:"address"`
		Alias    string `json:"alias,omitempty"`
		Password string `json:"password"`
		Host     string `json:"host"`
		Port     int    `json:"port"`
	} `json:"from"`
	To      []string `json:"to"`
	Content struct {
		Subject string `json:"subject"`
		Body    string `json:"body"`
	} `json:"content"`
}

// recipientsMax bounds the recipients of one e-mail.
const recipientsMax = 100

func newMail(params map[string]any) (*message, error) {
	data, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	m := &message{}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("the e-mail: %w", err)
	}
	if len(m.To) == 0 || len(m.To) > recipientsMax {
		return nil, fmt.Errorf("the e-mail has %d recipients; one to %d are possible", len(m.To), recipientsMax)
	}
	for _, address := range append(slices.Clone(m.To), m.From.Address) {
		if _, err := mail.ParseAddress(address); err != nil || strings.ContainsAny(address, "\r\n") {
			return nil, fmt.Errorf("%q is not an address of e-mail", address)
		}
	}
	if m.From.Host == "" || m.From.Port <= 0 || m.From.Port > 65535 {
		return nil, errors.New("the e-mail: from.host and from.port must be given")
	}
	return m, nil
}

// send sends an e-mail, encrypted if the server supports that. The error contains nothing of the
// server's answer but its code.
func (c *Controller) send(ctx context.Context, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := c.cfg.Requests.DialContext(ctx, "tcp", net.JoinHostPort(m.From.Host, strconv.Itoa(m.From.Port)))
	if err != nil {
		return fmt.Errorf("the mail server: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := m.deliver(conn, c.cfg.Now()); err != nil {
		var said *textproto.Error
		if errors.As(err, &said) {
			return fmt.Errorf("the mail server answers %d", said.Code)
		}
		return errors.New("the mail server does not take the e-mail: the connection ended, TLS failed, or it does not speak SMTP")
	}
	return nil
}

// deliver hands the e-mail to the server at the other end of conn.
func (m *message) deliver(conn net.Conn, now time.Time) error {
	config := &tls.Config{ServerName: m.From.Host, MinVersion: tls.VersionTLS12}
	if m.From.Port == 465 {
		conn = tls.Client(conn, config)
	}
	client, err := smtp.NewClient(conn, m.From.Host)
	if err != nil {
		return err
	}
	if ok, _ := client.Extension("STARTTLS"); ok {
		if err := client.StartTLS(config); err != nil {
			return err
		}
	}
	if ok, _ := client.Extension("AUTH"); ok && m.From.Password != "" {
		if err := client.Auth(smtp.PlainAuth("", m.From.Address, m.From.Password, m.From.Host)); err != nil {
			return err
		}
	}
	if err := client.Mail(m.From.Address); err != nil {
		return err
	}
	for _, to := range m.To {
		if err := client.Rcpt(to); err != nil {
			return err
		}
	}
	w, err := client.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(m.text(now)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return client.Quit()
}

func (m *message) text(now time.Time) []byte {
	var b bytes.Buffer
	from := mail.Address{Name: m.From.Alias, Address: m.From.Address}
	fmt.Fprintf(&b, "From: %s\r\nTo: %s\r\nSubject: %s\r\nDate: %s\r\nMIME-Version: 1.0\r\nContent-Type: text/html; charset=UTF-8\r\n\r\n%s\r\n",
		from.String(), strings.Join(m.To, ", "), mime.QEncoding.Encode("utf-8", m.Content.Subject), now.Format(time.RFC1123Z), m.Content.Body)
	return b.Bytes()
}
