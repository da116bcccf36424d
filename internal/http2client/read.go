package http2client

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// read handles frames from the server until the connection ends.
func (c *conn) read() {
	for {
		f, err := c.frames.ReadFrame()
		if err != nil {
			c.fail(err)
			return
		}
		c.heard.Add(1)
		if err := c.take(f); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *conn) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		c.current = answering{stream: f.StreamID, ends: f.StreamEnded(), length: -1}
		return c.takeHeader(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame:
		return c.takeHeader(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.DataFrame:
		return c.takeData(f)
	case *http2.RSTStreamFrame:
		c.reset(f)
	case *http2.SettingsFrame:
		return c.takeSettings(f)
	case *http2.WindowUpdateFrame:
		c.mu.Lock()
		defer c.mu.Unlock()
		if f.StreamID == 0 { // bodies are sent as a whole, so calls need no window updates
			c.window += int64(f.Increment)
			c.wakeCallers()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			c.reply(func() error { return c.writer.WritePing(true, f.Data) })
		}
	case *http2.GoAwayFrame:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.retired = true
		for id, x := range c.calls {
			if id > f.LastStreamID {
				c.ended(id, x, errUnsent)
			}
		}
		c.retires()
	case *http2.PushPromiseFrame:
		return errors.New("the server pushes unasked")
	}
	return nil // other frames are ignored
}

// reply queues a frame that another goroutine writes: the reader must not block on a write, because
// the server may wait for the reader.
func (c *conn) reply(write func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.put(write())
	if !c.writing {
		go func() {
			c.mu.Lock()
			c.flush()
		}()
	}
}

// takeHeader handles a fragment of an answer's header.
func (c *conn) takeHeader(block []byte, ended bool) error {
	if c.current.size += len(block); c.current.size > headersMax {
		return errors.New("the header of an answer is too long")
	}
	if _, err := c.header.Write(block); err != nil {
		return fmt.Errorf("the header of an answer: %w", err)
	}
	if !ended {
		return nil
	}
	if err := c.header.Close(); err != nil {
		return fmt.Errorf("the header of an answer: %w", err)
	}
	h := &c.current
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.calls[h.stream]
	if x == nil {
		return nil // given up
	}
	switch {
	case x.answer.Code != 0: // trailers
	case h.code < 100:
		return errors.New("an answer without a code")
	case h.code < 200:
		return nil // the final header follows
	default:
		x.answer = Answer{Code: h.code, ContentType: h.ContentType, RetryAfter: h.RetryAfter}
		if h.length > 0 {
			x.answer.Body = make([]byte, 0, min(h.length, trusted))
		}
	}
	if h.ends {
		c.ended(h.stream, x, nil)
	}
	return nil
}

// field handles a field of the header.
func (c *conn) field(f hpack.HeaderField) {
	h := &c.current
	switch f.Name {
	case ":status":
		h.code, _ = strconv.Atoi(f.Value)
	case "content-type":
		h.ContentType = f.Value
	case "content-length":
		if n, err := strconv.Atoi(f.Value); err == nil {
			h.length = n
		}
	case "retry-after":
		h.RetryAfter = f.Value
	}
}

// takeData handles a fragment of an answer's body.
func (c *conn) takeData(f *http2.DataFrame) error {
	length := int(f.Length) // including padding
	if c.received += length; c.received >= windowAll/2 {
		more := uint32(c.received)
		c.received = 0
		c.reply(func() error { return c.writer.WriteWindowUpdate(0, more) })
	}
	c.mu.Lock()
	x := c.calls[f.StreamID]
	if x == nil {
		c.mu.Unlock()
		return nil // given up
	}
	if x.answer.Code == 0 {
		c.mu.Unlock()
		return errors.New("an answer without a header")
	}
	if len(x.answer.Body)+length > answerMax {
		c.put(c.writer.WriteRSTStream(f.StreamID, http2.ErrCodeCancel))
		c.ended(f.StreamID, x, errors.New("the answer is too long"))
		c.mu.Unlock()
		return nil
	}
	x.answer.Body = append(x.answer.Body, f.Data()...)
	x.received += length
	more := x.received
	switch {
	case f.StreamEnded():
		c.ended(f.StreamID, x, nil)
		more = 0
	case more >= windowStart/2:
		x.received = 0
	default:
		more = 0
	}
	c.mu.Unlock()
	if more > 0 {
		c.reply(func() error { return c.writer.WriteWindowUpdate(f.StreamID, uint32(more)) })
	}
	return nil
}

// reset ends a call that the server does not answer.
func (c *conn) reset(f *http2.RSTStreamFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.calls[f.StreamID]
	switch {
	case x == nil:
	case f.ErrCode == http2.ErrCodeRefusedStream:
		c.ended(f.StreamID, x, errUnsent)
	default:
		c.ended(f.StreamID, x, fmt.Errorf("the server gives up the request: %s", f.ErrCode))
	}
}

func (c *conn) takeSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingMaxConcurrentStreams:
			c.callsMax = int(min(s.Val, 1<<20))
		case http2.SettingInitialWindowSize:
			c.streamWindow = int64(s.Val)
		case http2.SettingMaxFrameSize:
			c.frameMax = int(s.Val)
		case http2.SettingHeaderTableSize:
			c.fields.SetMaxDynamicTableSize(min(s.Val, 4096))
		}
		return nil
	})
	c.settle()
	c.wakeCallers()
	c.mu.Unlock()
	if err == nil {
		c.reply(c.writer.WriteSettingsAck)
	}
	return err
}
