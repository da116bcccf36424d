package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAddressesAreClassified(t *testing.T) {
	for class, addresses := range map[class][]string{
		public:   {"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"},
		loopback: {"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"},
		link:     {"169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.1.1"},
		private: {"10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "198.18.0.1", "fc00::1", "fdff::1", "fec0::1",
			"::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "2002:a00:1::1"},
		group: {"224.0.0.1", "239.255.255.255", "ff02::1", "::ffff:224.0.0.1"},
		reserved: {"0.0.0.0", "0.1.2.3", "::", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.1", "203.0.113.1", "::808:808", "2001::1", "2001:db8::1",
			"100::1", "192.88.99.1", "::ffff:0.0.0.0"},
		metadata: {"169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23", "192.0.0.192", "fd20:ce::254",
			"::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:168.63.129.16"},
	} {
		for _, a := range addresses {
			if got := classify(plain(netip.MustParseAddr(a))); got != class {
				t.Errorf("%s is %q, not %q", a, got, class)
			}
		}
	}
}

func TestWhatIsAllowed(t *testing.T) {
	for name, c := range map[string]struct {
		allow         []string
		host, address string
		refused       bool
	}{
		"a public address":                    {nil, "example.com", "8.8.8.8", false},
		"a private address":                   {nil, "example.com", "10.1.2.3", true},
		"a network":                           {[]string{"10.0.0.0/8"}, "example.com", "10.1.2.3", false},
		"a network, written as IPv6":          {[]string{"10.0.0.0/8"}, "example.com", "::ffff:10.1.2.3", false},
		"another network":                     {[]string{"10.0.0.0/8"}, "example.com", "192.168.0.1", true},
		"an address":                          {[]string{"10.1.2.3"}, "10.1.2.3", "10.1.2.3", false},
		"another address":                     {[]string{"10.1.2.3"}, "10.1.2.4", "10.1.2.4", true},
		"a name":                              {[]string{"Charts.Example.com."}, "charts.example.com", "10.1.2.3", false},
		"a name does not open its subdomains": {[]string{"example.com"}, "charts.example.com", "10.1.2.3", true},
		"a suffix":                            {[]string{"*.svc.cluster.local"}, "a.b.svc.cluster.local", "10.1.2.3", false},
		"a suffix does not open names that only end alike":   {[]string{"*.example.com"}, "badexample.com", "10.1.2.3", true},
		"a network does not open metadata":                   {[]string{"169.254.0.0/16", "0.0.0.0/0", "::/0"}, "example.com", "169.254.169.254", true},
		"everything does not open metadata at public places": {[]string{"0.0.0.0/0"}, "example.com", "168.63.129.16", true},
		"a name does not open metadata":                      {[]string{"example.com", "*.com"}, "example.com", "169.254.169.254", true},
		"the address opens metadata":                         {[]string{"169.254.169.254"}, "example.com", "169.254.169.254", false},
		"the address opens metadata, in every notation":      {[]string{"169.254.169.254/32"}, "example.com", "::ffff:169.254.169.254", false},
		"the name opens metadata":                            {[]string{"metadata.google.internal"}, "metadata.google.internal", "169.254.169.254", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := parseAllowed(c.allow)
			if err != nil {
				t.Fatal(err)
			}
			err = a.judge(c.host, netip.MustParseAddr(c.address))
			var refused *RefusedError
			if (err != nil) != c.refused || err != nil && (!errors.As(err, &refused) || !strings.Contains(err.Error(), Flag) || !strings.Contains(err.Error(), c.host)) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, entry := range []string{"", "http://x", "10.0.0.0/40", "a b", "*x", "*", "1.2.3", "a/8", "host:80"} {
		if _, err := New(Config{Allow: []string{entry}}); err == nil || !strings.Contains(err.Error(), Flag) || !strings.Contains(err.Error(), fmt.Sprintf("%q", entry)) {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

// counted is a server that counts its requests.
func counted(t *testing.T, h http.HandlerFunc) (*httptest.Server, *atomic.Int64) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.Add(1); h(w, r) }))
	t.Cleanup(s.Close)
	return s, &n
}

func guard(t *testing.T, c Config) *Guard {
	t.Helper()
	if c.Proxy == nil {
		c.Proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func get(t *testing.T, g *Guard, address string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Token", "hunter2")
	res, err := g.Do(r)
	if err != nil {
		return "", err
	}
	data, err := ReadAll(res, 1<<10)
	return string(data), err
}

func ok(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "seen %s", r.Header.Get("X-Token")) }

func TestThisMachineIsNotReachedByAnyNotation(t *testing.T) {
	s, n := counted(t, ok)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	g := guard(t, Config{})
	for _, host := range []string{
		"127.0.0.1", "localhost", "LOCALHOST.", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0", "[::]", "[::1]",
		"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "127.0.0.1.", "１２７.0.0.1", "metadata.google.internal", "Metadata.Google.Internal.",
	} {
		if _, err := get(t, g, "http://"+host+":"+port+"/"); err == nil {
			t.Errorf("%s was reached", host)
		} else if !strings.Contains(err.Error(), Flag) && !strings.HasSuffix(host, ".") {
			// A name with a trailing dot may have no address here.
			t.Errorf("%s: %v: it does not name the flag", host, err)
		}
	}
	if n.Load() != 0 {
		t.Errorf("%d requests arrived", n.Load())
	}
	if got, err := get(t, guard(t, Config{Allow: []string{"127.0.0.0/8"}}), s.URL); err != nil || got != "seen hunter2" {
		t.Error(got, err)
	}
}

// TestANameThatChangesItsAddressGainsNothing checks that a name that resolves first to a public
// address and then to this machine is judged by the dialled address.
func TestANameThatChangesItsAddressGainsNothing(t *testing.T) {
	s, n := counted(t, ok)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	g := guard(t, Config{})
	var asked atomic.Int64
	g.resolver = resolver(t, func(string) netip.Addr {
		if asked.Add(1) == 1 {
			return netip.MustParseAddr("192.0.2.1")
		}
		return netip.MustParseAddr("127.0.0.1")
	})
	for range 3 {
		if _, err := get(t, g, "http://changing.example.com:"+port+"/"); err == nil || !strings.Contains(err.Error(), Flag) {
			t.Error(err)
		}
	}
	if n.Load() != 0 || asked.Load() == 0 {
		t.Errorf("%d requests arrived, the name was asked for %d times", n.Load(), asked.Load())
	}
}

func TestRedirectsAreJudged(t *testing.T) {
	inner, arrived := counted(t, ok)
	_, port, _ := net.SplitHostPort(inner.Listener.Addr().String())
	var to string
	outer, _ := counted(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Location"] = []string{to}
		w.WriteHeader(http.StatusFound)
	})
	// The outer server is allowed by its name, the inner one is not allowed.
	_, outerPort, _ := net.SplitHostPort(outer.Listener.Addr().String())
	g := guard(t, Config{Allow: []string{"outer.example.com"}})
	g.resolver = resolver(t, func(string) netip.Addr { return netip.MustParseAddr("127.0.0.1") })
	for target, want := range map[string]string{
		"http://127.0.0.1:" + port + "/":         Flag,
		"http://inner.example.com:" + port + "/": Flag,
		"http://169.254.169.254/latest":          Flag,
		"file:///etc/passwd":                     "http:// or https://",
		"gopher://127.0.0.1:" + port + "/":       "http:// or https://",
		"http://outer.example.com:" + outerPort:  "redirects",
		"http://[secret-bytes":                   "there is no answer of HTTP that can be read",
	} {
		to = target
		_, err := get(t, g, "http://outer.example.com:"+outerPort+"/start?key=hunter2")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-bytes") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", target, err)
		}
	}
	if arrived.Load() != 0 {
		t.Errorf("%d requests arrived", arrived.Load())
	}
	// If both are allowed, only the first gets headers that may be secret.
	to = "http://inner.example.com:" + port + "/"
	g = guard(t, Config{Allow: []string{"*.example.com"}})
	g.resolver = resolver(t, func(string) netip.Addr { return netip.MustParseAddr("127.0.0.1") })
	if got, err := get(t, g, "http://outer.example.com:"+outerPort+"/"); err != nil || got != "seen " {
		t.Error(got, err)
	}
}

func TestWhatAProxyIsAskedForIsJudged(t *testing.T) {
	proxy, n := counted(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "proxied ", r.URL.Host) })
	at, _ := url.Parse(proxy.URL)
	g := guard(t, Config{Proxy: func(*url.URL) (*url.URL, error) { return at, nil }})
	g.resolver = resolver(t, func(name string) netip.Addr {
		switch {
		case strings.HasPrefix(name, "inner."):
			return netip.MustParseAddr("10.1.2.3")
		case strings.HasPrefix(name, "public."):
			return netip.MustParseAddr("8.8.8.8")
		}
		return netip.Addr{}
	})
	for _, host := range []string{"127.0.0.1", "10.1.2.3", "inner.example.com", "metadata.google.internal", "169.254.169.254", "0x7f.1", "2130706433", "１２７.0.0.1", "[::1]"} {
		if _, err := get(t, g, "http://"+host+"/"); err == nil || !strings.Contains(err.Error(), Flag) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if n.Load() != 0 {
		t.Errorf("the proxy was asked %d times", n.Load())
	}
	for _, host := range []string{"public.example.com", "only-the-proxy-knows.example.com"} {
		if got, err := get(t, g, "http://"+host+"/"); err != nil || got != "proxied "+host {
			t.Error(got, err)
		}
	}
}

// TestErrorsHoldNothingOfWhatWasRead checks servers that do not speak HTTP or break off: no error
// contains any of their bytes.
func TestErrorsHoldNothingOfWhatWasRead(t *testing.T) {
	const secret = "s3cr3t-bytes"
	for name, answer := range map[string]string{
		"another protocol":   "SSH-2.0-" + secret + "\r\n",
		"a line":             secret + "\r\n\r\n",
		"a status":           "HTTP/1.1 " + secret + "\r\n\r\n",
		"a version":          "HTTP/" + secret + " 200 OK\r\n\r\n",
		"a header":           "HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n",
		"a length":           "HTTP/1.1 200 OK\r\nContent-Length: " + secret + "\r\n\r\n",
		"a coding":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + secret + "\r\n\r\n",
		"a chunk":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + secret + "\r\n",
		"a gzip that is not": "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + secret,
		"a body that ends":   "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + secret,
		"a redirect":         "HTTP/1.1 302 Found\r\nLocation: http://[" + secret + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 1<<10))
					_, _ = io.WriteString(conn, answer)
					_ = conn.Close()
				}
			}()
			_, err = get(t, guard(t, Config{Allow: []string{"127.0.0.1"}}), "http://"+l.Addr().String()+"/")
			if err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAnswersAreBounded(t *testing.T) {
	s, _ := counted(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	if _, err := get(t, guard(t, Config{Allow: []string{"127.0.0.1"}}), s.URL); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	silent, _ := counted(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, silent.URL, nil)
	if _, err := guard(t, Config{Allow: []string{"127.0.0.1"}}).Do(r); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
