package http2client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// frameMax is the maximum size of a frame from the server, in bytes.
	frameMax = 256 << 10
	// windowStart is the initial flow-control window of an answer, in bytes.
	windowStart = 4 << 20
	// windowAll is the flow-control window for all answers on a connection, in bytes.
	windowAll = 1 << 30
	// answerMax is the maximum size of an answer, in bytes. Objects in Kubernetes' store have at
	// most 1.5 MiB, about twice that in JSON.
	answerMax = 64 << 20
	// headersMax is the maximum size of an answer's header, in bytes.
	headersMax = 1 << 20
	// trusted is the largest buffer that is allocated in advance for a content-length given by the
	// server, in bytes.
	trusted = 1 << 20
	// keptMax is the maximum size of a buffer that is kept for reuse, in bytes.
	keptMax = 256 << 10
	// writeMax is how long a write may block.
	writeMax = 15 * time.Second
	// healthInterval is the interval between checks of a connection. If nothing arrived since the last
	// check, the check sends a ping; the next check closes the connection if still nothing arrived.
	healthInterval = 20 * time.Second
	// idleMax is the number of checks without requests after which a connection is closed.
	idleMax = 5
	// ageMax is how long a connection takes requests.
	ageMax = 10 * time.Minute
	// lastStream is the last stream number used on a connection; HTTP/2 has no numbers from 2^31.
	lastStream = 1 << 30
)

// conn is a connection to the server.
type conn struct {
	net         net.Conn
	check       *TermCheck    // checks what net writes to its socket
	frames      *http2.Framer // for reading
	heard       atomic.Uint64 // number of frames from the server
	made        time.Time
	healthTimer *time.Timer

	// Fields of the reading goroutine.
	header   *hpack.Decoder
	current  answering
	received int

	mu           sync.Mutex
	err          error // why the connection is no longer usable
	retired      bool  // takes no more requests
	settled      chan struct{}
	settings     bool // the server's first settings have arrived
	calls        map[uint32]*call
	next         uint32        // stream number of the next call
	changed      chan struct{} // closed when another call may fit; nil while no caller waits
	window       int64         // flow-control window of the connection, in bytes
	streamWindow int64         // initial flow-control window of each call, in bytes
	callsMax     int
	frameMax     int
	out          []byte // bytes to be written
	terms        []Term // terms of the requests in out
	spare        []byte // the buffer written last, for reuse
	writing      bool
	writer       *http2.Framer // appends to out
	fields       *hpack.Encoder
	block        bytes.Buffer // output of fields

	// Fields of the checks.
	lastHeard uint64
	lastNext  uint32
	asked     bool
	idle      int
}

// call is a request whose answer has not arrived yet.
type call struct {
	answer   Answer
	received int // bytes of the body received since the last window update
	done     chan struct{}
	err      error
}

// answering is the header of the answer that is being read.
type answering struct {
	stream uint32
	ends   bool
	size   int
	code   int
	length int
	Answer
}

// newConn starts the HTTP/2 connection and waits for the server's settings.
func newConn(ctx context.Context, raw net.Conn, check *TermCheck) (*conn, error) {
	c := &conn{
		net: raw, check: check, made: time.Now(), settled: make(chan struct{}), calls: map[uint32]*call{}, next: 1,
		// Defaults until the server's settings arrive.
		window: 65535, streamWindow: 65535, callsMax: 100, frameMax: 16 << 10,
	}
	c.frames = http2.NewFramer(io.Discard, bufio.NewReaderSize(raw, 16<<10))
	c.frames.SetMaxReadFrameSize(frameMax)
	c.frames.SetReuseFrames()
	c.header = hpack.NewDecoder(4096, c.field)
	c.writer = http2.NewFramer((*outBuffer)(c), nil)
	c.fields = hpack.NewEncoder(&c.block)
	c.mu.Lock()
	c.out = append(c.out, http2.ClientPreface...)
	c.put(c.writer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowStart},
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: frameMax},
	))
	c.put(c.writer.WriteWindowUpdate(0, windowAll))
	c.healthTimer = time.AfterFunc(healthInterval, c.checkHealth)
	c.flush()
	go c.read()
	select {
	case <-c.settled:
	case <-ctx.Done():
		c.fail(ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.err
}

// outBuffer writes to out. The caller holds mu.
type outBuffer conn

func (o *outBuffer) Write(p []byte) (int, error) {
	o.out = append(o.out, p...)
	return len(p), nil
}

// put ends the connection if err, the result of assembling a frame, is not nil. The caller holds
// mu.
func (c *conn) put(err error) {
	if err != nil {
		c.failed(err)
	}
}

// open reports whether the connection takes requests.
func (c *conn) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.retired
}

// do makes a request.
func (c *conn) do(ctx context.Context, authority string, common []Field, r Request) (Answer, error) {
	c.mu.Lock()
	for {
		if c.err != nil || c.retired {
			c.mu.Unlock()
			return Answer{}, errUnsent
		}
		if int64(len(r.Body)) > c.streamWindow {
			c.mu.Unlock()
			return Answer{}, ErrTooLong
		}
		if len(c.calls) < c.callsMax && int64(len(r.Body)) <= c.window {
			break
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
		c.mu.Lock()
	}
	id, x := c.next, &call{done: make(chan struct{})}
	c.next += 2
	c.retired = c.next > lastStream
	c.calls[id] = x
	c.window -= int64(len(r.Body))
	c.send(id, authority, common, r)
	if r.Term != nil && !slices.Contains(c.terms, r.Term) {
		c.terms = append(c.terms, r.Term)
	}
	c.flush()
	select {
	case <-x.done:
	case <-ctx.Done():
		c.mu.Lock()
		if c.calls[id] == x {
			c.put(c.writer.WriteRSTStream(id, http2.ErrCodeCancel))
			c.ended(id, x, ctx.Err())
		}
		c.flush()
		<-x.done
	}
	return x.answer, x.err
}

// send puts a request into the buffer. The caller holds mu.
func (c *conn) send(id uint32, authority string, common []Field, r Request) {
	c.block.Reset()
	field := func(f Field) {
		// Writes to a buffer do not fail.
		_ = c.fields.WriteField(f)
	}
	field(Field{Name: ":method", Value: r.Method})
	field(Field{Name: ":scheme", Value: "https"})
	field(Field{Name: ":authority", Value: authority})
	// Paths are all different: in the dynamic table they would evict repeated fields.
	c.unlike(4, r.Path)
	for _, f := range common {
		field(f)
	}
	for _, f := range r.Header {
		field(f)
	}
	if len(r.Body) > 0 {
		c.unlike(28, strconv.Itoa(len(r.Body))) // content-length
	}
	block := c.block.Bytes()
	first := block[:min(len(block), c.frameMax)]
	block = block[len(first):]
	c.put(c.writer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: first, EndStream: len(r.Body) == 0, EndHeaders: len(block) == 0,
	}))
	for len(block) > 0 {
		piece := block[:min(len(block), c.frameMax)]
		block = block[len(piece):]
		c.put(c.writer.WriteContinuation(id, len(block) == 0, piece))
	}
	for body := r.Body; len(body) > 0; {
		piece := body[:min(len(body), c.frameMax)]
		body = body[len(piece):]
		c.put(c.writer.WriteData(id, len(body) == 0, piece))
	}
}

// unlike writes a field whose name has an index in HTTP/2's static table, without adding its value
// to the dynamic table, because the value will not repeat (RFC 7541, 6.2.2). The index has a prefix
// of four bits, the length of the value one of seven.
func (c *conn) unlike(name uint64, value string) {
	c.block.Write(appendNumber(nil, 0, 4, name))
	c.block.Write(appendNumber(nil, 0, 7, uint64(len(value))))
	c.block.WriteString(value)
}

// appendNumber appends a number whose prefix is the low bits of a byte (RFC 7541, 5.1).
func appendNumber(out []byte, head byte, bits int, n uint64) []byte {
	full := uint64(1)<<bits - 1
	if n < full {
		return append(out, head|byte(n))
	}
	out = append(out, head|byte(full))
	for n -= full; n >= 0x80; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}

// flush writes the buffer, unless another goroutine is writing, which then also writes the new
// content. The caller holds mu; flush releases it.
func (c *conn) flush() {
	if c.writing {
		c.mu.Unlock()
		return
	}
	c.writing = true
	for len(c.out) > 0 && c.err == nil {
		c.mu.Unlock()
		runtime.Gosched() // callers about to make a request go first, to share the system call
		c.mu.Lock()
		batch := c.out
		c.out, c.spare = c.spare[:0], nil
		c.check.set(c.terms)
		c.terms = nil
		c.mu.Unlock()
		err := c.net.SetWriteDeadline(time.Now().Add(writeMax))
		if err == nil {
			_, err = c.net.Write(batch)
		}
		c.mu.Lock()
		if cap(batch) <= keptMax {
			c.spare = batch
		}
		if err != nil {
			c.failed(err)
		}
	}
	c.writing = false
	c.mu.Unlock()
}

// ended ends a call. The caller holds mu.
func (c *conn) ended(id uint32, x *call, err error) {
	x.err = err
	delete(c.calls, id)
	close(x.done)
	c.wakeCallers()
	if c.retired && len(c.calls) == 0 {
		c.failed(errUnsent)
	}
}

// wakeCallers wakes callers that wait for a free stream or for the window. The caller holds mu.
func (c *conn) wakeCallers() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed(err)
}

// failed ends the connection and all its calls. The caller holds mu.
func (c *conn) failed(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.healthTimer.Stop()
	for id, x := range c.calls {
		c.ended(id, x, fmt.Errorf("the connection was lost: %w", err))
	}
	c.wakeCallers()
	c.settle()
	go func() { _ = c.net.Close() }() // Close waits for a write in progress
}

// settle wakes callers that wait for the connection's settings. The caller holds mu.
func (c *conn) settle() {
	if !c.settings {
		c.settings = true
		close(c.settled)
	}
}

// retire makes the connection take no more requests, and closes it after its current ones.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retires()
}

// retires is retire for a caller that holds mu.
func (c *conn) retires() {
	c.retired = true
	c.wakeCallers()
	if len(c.calls) == 0 {
		c.failed(errUnsent)
	}
}

var errDead = errors.New("no sign of life from the server")

// checkHealth ends a connection that is dead, idle or old, and pings one that is silent.
func (c *conn) checkHealth() {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	heard := c.heard.Load()
	switch {
	case heard != c.lastHeard:
		c.lastHeard, c.asked = heard, false
	case c.asked:
		c.failed(errDead)
		c.mu.Unlock()
		return
	default:
		c.asked = true
		c.put(c.writer.WritePing(false, [8]byte{1}))
	}
	if c.idle++; len(c.calls) > 0 || c.next != c.lastNext {
		c.idle, c.lastNext = 0, c.next
	}
	if c.idle >= idleMax || time.Since(c.made) > ageMax {
		c.retires()
	}
	c.healthTimer.Reset(healthInterval)
	c.flush()
}
