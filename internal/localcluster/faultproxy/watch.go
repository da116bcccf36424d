package faultproxy

import (
	"net/http"
	"strings"
	"time"
)

// expired is the event that tells a client that its resource version is too old to watch from.
// Clients watch built-in types in protobuf, for which there is no such event here: their watches
// get the answer 410, which means the same.
var expired = append(append([]byte(`{"type":"ERROR","object":`), status(http.StatusGone, "")...), "}\n"...)

// watch forwards a watch and injects its faults.
func (p *Proxy) watch(w http.ResponseWriter, r *Request, f *Fault) {
	if f.Watch.Expired {
		if strings.Contains(r.Header.Get("Accept"), "protobuf") {
			p.instead(w, r.Request, &Fault{Answer: http.StatusGone})
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(expired)
		return
	}
	answer, err := p.upstream(r.Request, nil)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	header(w, answer)
	flush := http.NewResponseController(w).Flush
	_ = flush()
	pieces, left := make(chan []byte), make(chan struct{})
	defer close(left)
	go func() { // ends when the answer's body is closed, at the latest when watch returns
		defer close(pieces)
		for {
			piece := make([]byte, pieceBytes)
			n, err := answer.Body.Read(piece)
			if n > 0 {
				select {
				case pieces <- piece[:n]:
				case <-left:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	freeze, end := after(f.Watch.FreezeFor > 0, f.Watch.FreezeAfter), after(f.Watch.EndAfter > 0, f.Watch.EndAfter)
	torn := false
	for {
		select {
		case <-freeze:
			if !wait(r.Request, f.Watch.FreezeFor) {
				panic(http.ErrAbortHandler)
			}
		case <-end:
			if !f.Watch.Torn {
				return
			}
			torn = true // the next event is torn
		case piece, ok := <-pieces:
			if !ok {
				return
			}
			if torn {
				_, _ = w.Write(piece[:len(piece)/2])
				_ = flush()
				panic(http.ErrAbortHandler)
			}
			if _, err := w.Write(piece); err != nil {
				panic(http.ErrAbortHandler)
			}
			_ = flush()
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// after returns a channel that delivers once after d, or never if ever is false.
func after(ever bool, d time.Duration) <-chan time.Time {
	if !ever {
		return nil
	}
	return time.After(d)
}
