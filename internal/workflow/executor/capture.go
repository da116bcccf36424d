package executor

import (
	"os"
	"sync"
	"time"
)

// sink receives a copy of a command's output.
type sink interface{ take([]byte) }

// tail keeps the last max bytes.
type tail struct {
	max  int
	data []byte
}

func (t *tail) take(p []byte) {
	t.data = append(t.data, p...)
	// Bytes are moved rarely, so that each is copied a bounded number of times.
	if len(t.data) > 2*t.max {
		t.data = append(t.data[:0], t.data[len(t.data)-t.max:]...)
	}
}

func (t *tail) reset() { t.data = nil }

// text returns the kept output without its final newline.
func (t *tail) text() string {
	data := t.data
	if len(data) > t.max {
		data = data[len(data)-t.max:]
	}
	if n := len(data); n > 0 && data[n-1] == '\n' {
		data = data[:n-1]
	}
	return string(data)
}

// logFile is the file that receives a copy of stdout and stderr. A full disk ends the log, not the
// command.
type logFile struct {
	mu   sync.Mutex
	file *os.File
	err  error
}

func openLog(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	return &logFile{file: f}, err
}

func (l *logFile) take(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		_, l.err = l.file.Write(p)
	}
}

// copying is a running copy of the data of a pipe to a file and to sinks.
type copying struct {
	from *os.File
	done chan struct{}
}

func copyOutput(from, to *os.File, keep ...sink) *copying {
	c := &copying{from: from, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		buffer := make([]byte, 32<<10)
		broken := false
		for {
			n, err := from.Read(buffer)
			for _, k := range keep {
				k.take(buffer[:n])
			}
			if n > 0 && !broken {
				_, wrong := to.Write(buffer[:n])
				broken = wrong != nil // the log's reader is gone; the command must not notice
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

// finish reads the rest of the pipe.
func (c *copying) finish() {
	// Pipes of this program support deadlines. If one did not, finish would wait for the end of the
	// pipe.
	_ = c.from.SetReadDeadline(time.Now().Add(drainTime))
	<-c.done
	c.from.Close()
}
