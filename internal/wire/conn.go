package wire

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
	// frameMax is the longest frame that the server may send.
	frameMax = 256 << 10
	// windowStart is how much of an answer the server may send before it is told that there is room for more.
	windowStart = 4 << 20
	// windowAll is the same for all answers of a connection.
	windowAll = 1 << 30
	// answerMax is the longest answer; objects in Kubernetes' store have at most 1.5 MiB, about twice that in JSON.
	answerMax = 64 << 20
	// headersMax is the longest header of an answer.
	headersMax = 1 << 20
	// trusted is the largest length by the server's word for which room is made at once.
	trusted = 1 << 20
	// keptMax is how large a buffer may be that is kept.
	keptMax = 256 << 10
	// writeMax is how long the server may take none of what is sent.
	writeMax = 15 * time.Second
	// lookEvery is how often it is looked whether a connection lives. One from which nothing came since the last look is asked
	// for a sign of life, and given up at the next.
	lookEvery = 20 * time.Second
	// idleMax is after how many looks without a request a connection is closed.
	idleMax = 5
	// ageMax is how long a connection takes requests.
	ageMax = 10 * time.Minute
	// lastStream is the last number but some of a stream; there are no numbers after 2^31.
	lastStream = 1 << 30
)

// conn is a connection to the server.
type conn struct {
	net    net.Conn
	gate   *Gate         // before net's socket
	frames *http2.Framer // reads
	heard  atomic.Uint64 // counts the server's frames
	made   time.Time
	looks  *time.Timer

	// Of the goroutine that reads.
	header   *hpack.Decoder
	current  answering
	received int

	mu           sync.Mutex
	err          error // why it is of no use any more
	retired      bool  // takes no more requests
	settled      chan struct{}
	settings     bool // the server's first have come
	calls        map[uint32]*call
	next         uint32        // number of the next call
	changed      chan struct{} // closed when there is more room; nil while nobody waits
	window       int64         // how much may be sent
	streamWindow int64         // how much of each call
	callsMax     int
	frameMax     int
	out          []byte // to be written
	terms        []Term // of the requests in out
	spare        []byte // the buffer written last
	writing      bool
	writer       *http2.Framer // appends to out
	fields       *hpack.Encoder
	block        bytes.Buffer // what fields writes

	// Of the looks.
	lastHeard uint64
	lastNext  uint32
	asked     bool
	idle      int
}

// call is a request without an answer.
type call struct {
	answer   Answer
	received int // of the body since the server was told that there is room
	done     chan struct{}
	err      error
}

// answering is the header of an answer that is being read.
type answering struct {
	stream uint32
	ends   bool
	size   int
	code   int
	length int
	Answer
}

// newConn begins to talk to the server, and waits for what it has to say first.
func newConn(ctx context.Context, raw net.Conn, gate *Gate) (*conn, error) {
	c := &conn{
		net: raw, gate: gate, made: time.Now(), settled: make(chan struct{}), calls: map[uint32]*call{}, next: 1,
		window: 65535, streamWindow: 65535, callsMax: 100, frameMax: 16 << 10, // which hold until the server says otherwise
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
	c.looks = time.AfterFunc(lookEvery, c.look)
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

// outBuffer is out, to be written to. The caller holds mu.
type outBuffer conn

func (o *outBuffer) Write(p []byte) (int, error) {
	o.out = append(o.out, p...)
	return len(p), nil
}

// put has err, of frames that could not be put together, end the connection. The caller holds mu.
func (c *conn) put(err error) {
	if err != nil {
		c.failed(err)
	}
}

// open says whether the connection takes requests.
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
	// Paths are all different: in the table they would drive out what repeats.
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

// unlike puts a field into the block that has one of the names that HTTP/2 numbers, and a value that will not come again
// (RFC 7541, 6.2.2). Such numbers have four bits, lengths seven, before more bytes follow.
func (c *conn) unlike(name uint64, value string) {
	c.block.Write(appendNumber(nil, 0, 4, name))
	c.block.Write(appendNumber(nil, 0, 7, uint64(len(value))))
	c.block.WriteString(value)
}

// appendNumber appends a number whose first bits are the low ones of a byte (RFC 7541, 5.1).
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

// flush writes what is in the buffer, unless another goroutine is at it, which then writes this too. The caller holds mu, and
// does not any more when flush returns.
func (c *conn) flush() {
	if c.writing {
		c.mu.Unlock()
		return
	}
	c.writing = true
	for len(c.out) > 0 && c.err == nil {
		c.mu.Unlock()
		runtime.Gosched() // whoever is about to make a request goes first, so that both go out at once
		c.mu.Lock()
		batch := c.out
		c.out, c.spare = c.spare[:0], nil
		c.gate.set(c.terms)
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
	c.room()
	if c.retired && len(c.calls) == 0 {
		c.failed(errUnsent)
	}
}

// room tells those who wait that there may be room. The caller holds mu.
func (c *conn) room() {
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
	c.looks.Stop()
	for id, x := range c.calls {
		c.ended(id, x, fmt.Errorf("the connection was lost: %w", err))
	}
	c.room()
	c.settle()
	go func() { _ = c.net.Close() }() // which waits for who writes
}

// settle lets who waits for the connection go on. The caller holds mu.
func (c *conn) settle() {
	if !c.settings {
		c.settings = true
		close(c.settled)
	}
}

// retire has the connection take no more requests, and closes it after those that it has.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retires()
}

// retires is retire. The caller holds mu.
func (c *conn) retires() {
	c.retired = true
	c.room()
	if len(c.calls) == 0 {
		c.failed(errUnsent)
	}
}

var errDead = errors.New("no sign of life from the server")

// look sees to it that a connection ends that is dead, idle or old.
func (c *conn) look() {
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
	c.looks.Reset(lookEvery)
	c.flush()
}
