package faultproxy

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"time"
)

// serve handles one request: it decides on a fault and carries it out.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	// The body is read first, so that a fault can hold the request independently of the server.
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyMax))
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req := newRequest(r, int(p.n.Add(1)))
	f := (*p.decide.Load())(req)
	p.count(&f)
	if f.Lose == HalfBody {
		f.Worked = true
	}
	if f.Delay > 0 && !wait(r, f.Delay) {
		panic(http.ErrAbortHandler)
	}
	if f.Before != nil {
		f.Before()
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	if f.GoAway {
		w.Header().Set("Connection", "close")
	}
	if (f.Lose != NoLoss || f.Answer != 0) && !f.Worked {
		p.instead(w, r, &f)
		return
	}
	if req.Verb == "watch" {
		p.watch(w, req, &f)
		return
	}
	p.exchange(w, req, &f, body)
}

// instead loses the answer, or replaces it.
func (p *Proxy) instead(w http.ResponseWriter, r *http.Request, f *Fault) {
	if f.Lose != NoLoss {
		lose(r, f.Lose)
	}
	w.Header().Set("Content-Type", "application/json")
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	w.WriteHeader(f.Answer)
	_, _ = w.Write(status(f.Answer, f.RetryAfter))
}

// lose ends a request without an answer. It does not return.
func lose(r *http.Request, how Loss) {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok && how == ResetConnection {
		reset(c)
	}
	panic(http.ErrAbortHandler)
}

func wait(r *http.Request, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// upstream forwards the request to the server.
func (p *Proxy) upstream(r *http.Request, body []byte) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = p.target.Scheme, p.target.Host, "", ""
	out.Header.Del("Connection")
	out.Body, out.ContentLength, out.GetBody = http.NoBody, 0, nil
	if len(body) > 0 {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return p.up.RoundTrip(out)
}

// exchange forwards a request and its answer.
func (p *Proxy) exchange(w http.ResponseWriter, r *Request, f *Fault, body []byte) {
	index := -1
	if r.Write() {
		index = p.log(Write{At: time.Now(), N: r.N, Verb: r.Verb, Group: r.Group, Resource: r.Resource,
			Namespace: r.Namespace, Name: r.Name})
	}
	answer, err := p.upstream(r.Request, body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client or the server has gone
	}
	defer answer.Body.Close()
	if index >= 0 {
		p.logged(index, answer.StatusCode, f.Lose != NoLoss || f.Answer != 0)
	}
	if f.Done == nil && f.Lose == NoLoss && f.Answer == 0 {
		// The answer may not end soon (a followed log), so data is forwarded as it comes.
		header(w, answer)
		stream(w, answer.Body)
		answered(w, f)
		return
	}
	whole, err := io.ReadAll(io.LimitReader(answer.Body, bodyMax))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if f.Done != nil {
		f.Done()
	}
	switch {
	case f.Lose == HalfBody:
		header(w, answer)
		_, _ = w.Write(whole[:len(whole)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case f.Lose != NoLoss || f.Answer != 0:
		p.instead(w, r.Request, f)
	default:
		header(w, answer)
		_, _ = w.Write(whole)
		answered(w, f)
	}
}

func answered(w http.ResponseWriter, f *Fault) {
	if f.Answered != nil {
		_ = http.NewResponseController(w).Flush()
		f.Answered()
	}
}

func header(w http.ResponseWriter, answer *http.Response) {
	for k, v := range answer.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.StatusCode)
}

// pieceBytes is the maximum size of the pieces in which an answer is forwarded.
const pieceBytes = 32 << 10

func stream(w http.ResponseWriter, body io.Reader) {
	flush := http.NewResponseController(w).Flush
	piece := make([]byte, pieceBytes)
	for {
		n, err := body.Read(piece)
		if n > 0 {
			if _, err := w.Write(piece[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			_ = flush()
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
