package egress

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// class is the reason why users may not request an address.
type class string

const (
	public   class = ""
	metadata class = "a metadata address of a cloud"
	loopback class = "a loopback address"
	link     class = "a link-local address"
	private  class = "a private address"
	group    class = "a multicast address"
	reserved class = "a reserved address"
)

// metadataAddresses are the addresses of the clouds' metadata services, which often return
// credentials.
var metadataAddresses = map[netip.Addr]bool{
	netip.MustParseAddr("169.254.169.254"): true, // most clouds
	netip.MustParseAddr("169.254.170.2"):   true, // tasks of ECS
	netip.MustParseAddr("169.254.170.23"):  true, // pod identities of EKS
	netip.MustParseAddr("169.254.42.42"):   true, // Scaleway
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):   true, // Azure; a public address
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle
	netip.MustParseAddr("fd00:ec2::254"):   true, // EC2
	netip.MustParseAddr("fd00:ec2::23"):    true, // pod identities of EKS
	netip.MustParseAddr("fd20:ce::254"):    true, // Google
	netip.MustParseAddr("fd00:42::42"):     true, // Scaleway
}

// metadataNames are the names of the same services. Any name that resolves to a metadata address is
// refused; these names are refused even where a proxy would resolve them.
var metadataNames = map[string]bool{
	"metadata": true, "metadata.google.internal": true, "metadata.goog": true, "metadata.azure.internal": true,
	"metadata.azure.com": true, "instance-data": true, "instance-data.ec2.internal": true, "metadata.tencentyun.com": true,
	"metadata.aliyun.com": true, "metadata.internal": true,
}

// ranges are the networks that are not public, from the registries of special-purpose addresses.
var ranges = []struct {
	prefix netip.Prefix
	class  class
}{
	{netip.MustParsePrefix("0.0.0.0/8"), reserved}, // 0.0.0.0 connects to this machine
	{netip.MustParsePrefix("10.0.0.0/8"), private},
	{netip.MustParsePrefix("100.64.0.0/10"), private}, // carrier-grade NAT
	{netip.MustParsePrefix("127.0.0.0/8"), loopback},
	{netip.MustParsePrefix("169.254.0.0/16"), link},
	{netip.MustParsePrefix("172.16.0.0/12"), private},
	{netip.MustParsePrefix("192.0.0.0/24"), reserved},
	{netip.MustParsePrefix("192.0.2.0/24"), reserved},
	{netip.MustParsePrefix("192.88.99.0/24"), reserved}, // relays of 6to4
	{netip.MustParsePrefix("192.168.0.0/16"), private},
	{netip.MustParsePrefix("198.18.0.0/15"), private}, // benchmarks of networks
	{netip.MustParsePrefix("198.51.100.0/24"), reserved},
	{netip.MustParsePrefix("203.0.113.0/24"), reserved},
	{netip.MustParsePrefix("224.0.0.0/4"), group},
	{netip.MustParsePrefix("240.0.0.0/4"), reserved},
	{netip.MustParsePrefix("::1/128"), loopback},
	{netip.MustParsePrefix("::/96"), reserved},         // unspecified, and IPv4-compatible
	{netip.MustParsePrefix("64:ff9b:1::/48"), private}, // NAT64 of a local network
	{netip.MustParsePrefix("100::/64"), reserved},
	{netip.MustParsePrefix("2001::/23"), reserved}, // Teredo and others
	{netip.MustParsePrefix("2001:db8::/32"), reserved},
	{netip.MustParsePrefix("3fff::/20"), reserved},
	{netip.MustParsePrefix("5f00::/16"), reserved},
	{netip.MustParsePrefix("fc00::/7"), private},
	{netip.MustParsePrefix("fe80::/10"), link},
	{netip.MustParsePrefix("fec0::/10"), private},
	{netip.MustParsePrefix("ff00::/8"), group},
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

// plain returns the final destination of packets for a: the IPv4 address embedded in an IPv6
// address.
func plain(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixTo4.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}

// classify returns the class of a plain address.
func classify(a netip.Addr) class {
	if metadataAddresses[a] {
		return metadata
	}
	for _, r := range ranges {
		if r.prefix.Contains(a) {
			return r.class
		}
	}
	return public
}

// allowed holds the destinations that are allowed besides public addresses.
type allowed struct {
	prefixes  []netip.Prefix
	addresses map[netip.Addr]bool // single addresses, which also allow metadata addresses
	names     map[string]bool
	suffixes  []string // .example.com
}

// parseAllowed parses entries such as 10.0.0.0/8, 10.1.2.3, charts.example.com and
// *.apps.svc.cluster.local.
func parseAllowed(entries []string) (*allowed, error) {
	out := &allowed{addresses: map[netip.Addr]bool{}, names: map[string]bool{}}
	for _, entry := range entries {
		name := normal(strings.TrimSpace(entry))
		if prefix, err := netip.ParsePrefix(name); err == nil {
			if prefix.IsSingleIP() {
				out.addresses[plain(prefix.Addr())] = true
			} else {
				out.prefixes = append(out.prefixes, prefix.Masked())
			}
			continue
		}
		if address, err := netip.ParseAddr(name); err == nil {
			out.addresses[plain(address)] = true
			continue
		}
		suffix, wild := strings.CutPrefix(name, "*")
		if !isName(strings.TrimPrefix(suffix, ".")) || wild && !strings.HasPrefix(suffix, ".") {
			return nil, fmt.Errorf("%s: %q is not an address, a network such as 10.0.0.0/8, or a host name such as charts.example.com or *.example.com", Flag, entry)
		}
		if wild {
			out.suffixes = append(out.suffixes, suffix)
		} else {
			out.names[name] = true
		}
	}
	return out, nil
}

// name reports whether the name of a host allows all its addresses except metadata addresses; exact
// is true if the name itself is listed.
func (a *allowed) name(host string) (ok, exact bool) {
	if a.names[host] {
		return true, true
	}
	for _, suffix := range a.suffixes {
		if strings.HasSuffix(host, suffix) {
			return true, false
		}
	}
	return false, false
}

// judge returns nil if a connection to address may be made for host, which is in normal form.
func (a *allowed) judge(host string, address netip.Addr) error {
	address = plain(address)
	kind := classify(address)
	if kind == public || a.addresses[address] {
		return nil
	}
	ok, exact := a.name(host)
	if kind == metadata {
		if exact && metadataNames[host] {
			return nil
		}
		return &RefusedError{Host: host, why: kind}
	}
	if ok {
		return nil
	}
	for _, p := range a.prefixes {
		if p.Contains(address) {
			return nil
		}
	}
	return &RefusedError{Host: host, why: kind}
}

// judgeName returns an error for names that are refused whatever they resolve to.
func (a *allowed) judgeName(host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if metadataNames[host] && !a.names[host] {
		return &RefusedError{Host: host, why: "the name of a cloud's metadata service"}
	}
	if !isName(host) {
		return &RefusedError{Host: brief(host), why: "neither an IP address nor a host name"}
	}
	return nil
}

// normal returns a host in the form in which names are compared: ASCII, lower case, without a
// trailing dot.
func normal(host string) string {
	if strings.ContainsFunc(host, func(r rune) bool { return r > 127 }) {
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			host = ascii
		}
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// isName reports whether host is a DNS name. A name whose last label is a number is not: resolvers
// and proxies may treat 0x7f.1 or 2130706433 as an address.
func isName(host string) bool {
	if host == "" || len(host) > 253 {
		return false
	}
	labels := strings.Split(host, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	last := labels[len(labels)-1]
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

// brief returns text from others in a form that errors may show: short, and without unprintable
// characters.
func brief(text string) string {
	const most = 80
	if len(text) > most {
		text = text[:most]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
