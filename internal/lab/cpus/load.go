package cpus

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Result is the report of one load: of the client of the web server, or of a computation.
type Result struct {
	// PerSecond is the rate of answered requests, of computations of pi, or of a kernel's units.
	PerSecond float64 `json:"perSecond"`
	P50Ms     float64 `json:"p50Ms,omitempty"`
	P99Ms     float64 `json:"p99Ms,omitempty"`
	Errors    int64   `json:"errors,omitempty"`
	// ThrottledMs is the time for which the CFS quota kept a kernel's processes from running.
	// LLCMisses and RemoteLoads are the last-level cache misses, and those that another NUMA node's
	// memory answered, for each unit of a kernel. All are nil where they cannot be read.
	ThrottledMs *float64 `json:"throttledMs,omitempty"`
	LLCMisses   *float64 `json:"llcMisses,omitempty"`
	RemoteLoads *float64 `json:"remoteLoads,omitempty"`
	// Allowed lists the CPUs that the kernel allows the process; a client reports its server's.
	Allowed string `json:"allowed"`
}

// terminationLog is the file of a container's termination message.
const terminationLog = "/dev/termination-log"

// Leave writes the result as JSON to the container's termination message, if there is one, and to
// out.
func (r Result) Leave(out io.Writer) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := os.Stat(terminationLog); err == nil {
		if err := os.WriteFile(terminationLog, data, 0o644); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%s\n", data)
	return err
}

// allowed returns this process's Cpus_allowed_list.
func allowed() (string, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut(string(data), "Cpus_allowed_list:")
	if !found {
		return "", errors.New("/proc/self/status has no Cpus_allowed_list")
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line), nil
}

// workBytes is the number of bytes that the server checksums for each request: about 20 µs of work,
// mostly in the caches.
const workBytes = 32 << 10

// contentBytes is the memory from which the server takes what it checksums: more than the L2 caches
// of a few cores hold, and less than an L3 cache.
const contentBytes = 12 << 20

// Serve answers requests until ctx is done. Each request costs a checksum over the server's own
// memory.
func Serve(ctx context.Context, address string) error {
	content := make([]byte, contentBytes)
	for i := range content {
		content[i] = byte(i * 31)
	}
	var next atomic.Uint32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		at := int(next.Add(1)*2654435761%uint32(len(content)/workBytes)) * workBytes
		fmt.Fprintf(w, "%x\n", sha256.Sum256(content[at:at+workBytes]))
	})
	mux.HandleFunc("GET /allowed", func(w http.ResponseWriter, _ *http.Request) {
		list, err := allowed()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, list)
	})
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// warmUp is the time before the measurement.
const warmUp = time.Second

// Drive sends requests to the server at url for duration, over persistent connections with one
// request at a time each.
func Drive(ctx context.Context, url string, connections int, duration time.Duration) (Result, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}}
	if err := awaitServer(ctx, client, url); err != nil {
		return Result{}, err
	}
	var times histogram
	var failed atomic.Int64
	var running sync.WaitGroup
	began := time.Now().Add(warmUp)
	end := began.Add(duration)
	for range connections {
		running.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				start := time.Now()
				err := fetch(ctx, client, url, nil)
				switch {
				case start.Before(began):
				case err != nil:
					failed.Add(1)
				default:
					times.add(time.Since(start))
				}
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	var where strings.Builder
	if err := fetch(ctx, client, url+"/allowed", &where); err != nil {
		return Result{}, err
	}
	return Result{PerSecond: float64(times.count()) / duration.Seconds(), P50Ms: times.quantile(0.5), P99Ms: times.quantile(0.99),
		Errors: failed.Load(), Allowed: where.String()}, nil
}

func awaitServer(ctx context.Context, client *http.Client, url string) error {
	for {
		err := fetch(ctx, client, url, nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func fetch(ctx context.Context, client *http.Client, url string, into io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if into == nil {
		into = io.Discard
	}
	_, err = io.Copy(into, io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return err
}

// histogram counts durations in buckets that grow by 2 %, from 1 µs. It is safe for concurrent use.
type histogram struct{ buckets [1024]atomic.Int64 }

const growth = 1.02

func (h *histogram) add(d time.Duration) {
	i := int(math.Log(max(1, float64(d.Nanoseconds())/1e3)) / math.Log(growth))
	h.buckets[min(i, len(h.buckets)-1)].Add(1)
}

func (h *histogram) count() (n int64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// quantile returns the q-quantile in milliseconds, rounded up to the upper end of its bucket.
func (h *histogram) quantile(q float64) float64 {
	left := int64(math.Ceil(q * float64(h.count())))
	for i := range h.buckets {
		if left -= h.buckets[i].Load(); left <= 0 {
			return math.Pow(growth, float64(i+1)) / 1e3
		}
	}
	return 0
}

// piDigits is the number of digits to compute, which takes about 5 ms.
const piDigits = 2000

// Pi computes the digits of pi repeatedly for duration, in the given number of threads.
func Pi(ctx context.Context, threads int, duration time.Duration) (Result, error) {
	runtime.GOMAXPROCS(threads)
	var done atomic.Int64
	var running sync.WaitGroup
	began := time.Now().Add(warmUp)
	end := began.Add(duration)
	for range threads {
		running.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				start := time.Now()
				digits(piDigits)
				if !start.Before(began) {
					done.Add(1)
				}
			}
		})
	}
	running.Wait()
	where, err := allowed()
	if err == nil {
		err = ctx.Err()
	}
	return Result{PerSecond: float64(done.Load()) / duration.Seconds(), Allowed: where}, err
}

// digits returns the first n decimals of pi, by Machin's formula: pi/4 = 4 arctan(1/5) -
// arctan(1/239).
func digits(n int) *big.Int {
	const guard = 10
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n+guard)), nil)
	pi := new(big.Int).Mul(arctan(unit, 5), big.NewInt(4))
	pi.Sub(pi, arctan(unit, 239)).Mul(pi, big.NewInt(4))
	return pi.Quo(pi, new(big.Int).Exp(big.NewInt(10), big.NewInt(guard), nil))
}

// arctan returns arctan(1/x) in multiples of 1/unit.
func arctan(unit *big.Int, x int64) *big.Int {
	term := new(big.Int).Quo(unit, big.NewInt(x))
	sum := new(big.Int).Set(term)
	square := big.NewInt(x * x)
	part := new(big.Int)
	for i, sign := int64(3), int64(-1); term.Sign() != 0; i, sign = i+2, -sign {
		term.Quo(term, square)
		part.Quo(term, big.NewInt(i))
		if sign < 0 {
			sum.Sub(sum, part)
		} else {
			sum.Add(sum, part)
		}
	}
	return sum
}
