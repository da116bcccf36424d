// Package dns resolves the names of a cluster's services and pods from the API's Services and
// EndpointSlices, according to the specification that CoreDNS also implements (kubernetes/dns,
// schema version 1.1.0):
//
//	SERVICE.NAMESPACE.svc.ZONE                 A: the cluster IP; if headless, the ready endpoints
//	HOSTNAME.SERVICE.NAMESPACE.svc.ZONE        A: one endpoint (pod) of a headless service
//	_PORT._PROTOCOL.SERVICE.NAMESPACE.svc.ZONE SRV
//	1-2-3-4.NAMESPACE.pod.ZONE                 A: 1.2.3.4
//
// Names in other zones do not exist, because the pod network has no route to other networks.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// TTL is the TTL of answers in seconds: for so long a client may use an old address.
const TTL = 5

const byService = "service"

// Server answers DNS queries.
type Server struct {
	zone     string // "cluster.local."
	factory  informers.SharedInformerFactory
	services corelisters.ServiceLister
	slices   cache.Indexer
}

// New returns a server for a zone (cluster.local) of the cluster.
func New(client kubernetes.Interface, zone string) (*Server, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	err := informer.AddIndexers(cache.Indexers{byService: func(o any) ([]string, error) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			return nil, fmt.Errorf("%T is no EndpointSlice", o)
		}
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	}})
	if err != nil {
		return nil, err
	}
	return &Server{
		zone: dns.Fqdn(zone), factory: factory, services: factory.Core().V1().Services().Lister(),
		slices: informer.GetIndexer(),
	}, nil
}

// Run serves on address (host:port), UDP and TCP, until ctx is done. It starts to listen only when
// the cluster's services are known: a name that is not known yet must not be answered as
// nonexistent.
func (s *Server) Run(ctx context.Context, address string) error {
	s.factory.Start(ctx.Done())
	defer s.factory.Shutdown()
	for kind, ok := range s.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("dns: %s: %w", kind, ctx.Err())
		}
	}
	failed := make(chan error, 2)
	for _, network := range []string{"udp", "tcp"} {
		server := &dns.Server{Addr: address, Net: network, Handler: dns.HandlerFunc(s.handle), ReadTimeout: 5 * time.Second}
		go func() { failed <- server.ListenAndServe() }()
		defer func() { _ = server.Shutdown() }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("dns on %s: %w", address, err)
	}
}

func (s *Server) handle(w dns.ResponseWriter, request *dns.Msg) {
	reply := s.Answer(request)
	if _, tcp := w.RemoteAddr().(*net.TCPAddr); !tcp {
		size := dns.MinMsgSize
		if opt := request.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		reply.Truncate(size)
	}
	// The client may have gone.
	_ = w.WriteMsg(reply)
}

// errNoName means that a name does not exist, for any record type.
var errNoName = errors.New("no such name")

// Answer returns the reply to a request.
func (s *Server) Answer(request *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	reply.SetReply(request)
	reply.Authoritative = true
	if len(request.Question) != 1 || request.Question[0].Qclass != dns.ClassINET {
		reply.Rcode = dns.RcodeNotImplemented
		return reply
	}
	q := request.Question[0]
	records, err := s.records(strings.ToLower(q.Name))
	if err != nil {
		reply.Rcode = dns.RcodeNameError
	}
	for _, r := range records {
		if h := r.Header(); h.Rrtype == q.Qtype || h.Rrtype == dns.TypeCNAME || q.Qtype == dns.TypeANY {
			h.Name = q.Name
			reply.Answer = append(reply.Answer, r)
		}
	}
	if len(reply.Answer) == 0 {
		reply.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: s.zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: TTL},
			Ns:  "ns." + s.zone, Mbox: "hostmaster." + s.zone, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: TTL,
		}}
	}
	return reply
}

// records returns all records of a lower-case name.
func (s *Server) records(name string) ([]dns.RR, error) {
	rest, ours := strings.CutSuffix(name, "."+s.zone)
	if !ours {
		if name == s.zone {
			return nil, nil
		}
		return nil, errNoName
	}
	labels := strings.Split(rest, ".")
	slices.Reverse(labels) // svc, namespace, service, ...
	switch {
	case len(labels) == 3 && labels[0] == "pod":
		ip := net.ParseIP(strings.ReplaceAll(labels[2], "-", "."))
		if ip == nil {
			return nil, errNoName
		}
		return []dns.RR{a(ip)}, nil
	case labels[0] != "svc":
		return nil, errNoName
	case len(labels) < 3:
		return nil, nil // an empty non-terminal name
	}
	service, err := s.services.Services(labels[1]).Get(labels[2])
	if err != nil {
		return nil, errNoName
	}
	switch len(labels) {
	case 3:
		return s.service(service), nil
	case 4:
		if labels[3][:min(1, len(labels[3]))] == "_" {
			return nil, nil
		}
		return s.hosts(service, labels[3])
	case 5:
		return s.ports(service, labels[4], labels[3])
	}
	return nil, errNoName
}

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// service returns the records of a service's own name.
func (s *Server) service(service *corev1.Service) []dns.RR {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return []dns.RR{&dns.CNAME{Hdr: header(dns.TypeCNAME), Target: dns.Fqdn(service.Spec.ExternalName)}}
	}
	if !headless(service) {
		return addresses(service.Spec.ClusterIPs)
	}
	var ips []string
	s.endpoints(service, func(_ *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) { ips = append(ips, e.Addresses...) })
	return addresses(ips)
}

// hosts returns the records of a headless service's endpoints with the given host name.
func (s *Server) hosts(service *corev1.Service, host string) ([]dns.RR, error) {
	var ips []string
	if headless(service) {
		s.endpoints(service, func(_ *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) {
			if hostOf(e) == host {
				ips = append(ips, e.Addresses...)
			}
		})
	}
	if len(ips) == 0 {
		return nil, errNoName
	}
	return addresses(ips), nil
}

// ports returns the SRV records of a service's port.
func (s *Server) ports(service *corev1.Service, port, protocol string) ([]dns.RR, error) {
	port, ok1 := strings.CutPrefix(port, "_")
	protocol, ok2 := strings.CutPrefix(protocol, "_")
	if !ok1 || !ok2 {
		return nil, errNoName
	}
	own := fmt.Sprintf("%s.%s.svc.%s", service.Name, service.Namespace, s.zone)
	var out []dns.RR
	add := func(number int32, target string) {
		out = append(out, &dns.SRV{Hdr: header(dns.TypeSRV), Weight: 1, Port: uint16(number), Target: target})
	}
	matches := func(name string, p corev1.Protocol) bool {
		return name == port && strings.EqualFold(string(p), protocol)
	}
	if headless(service) {
		s.endpoints(service, func(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) {
			for _, p := range slice.Ports {
				if matches(ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, corev1.ProtocolTCP)) {
					add(ptr.Deref(p.Port, 0), hostOf(e)+"."+own)
				}
			}
		})
	} else {
		for _, p := range service.Spec.Ports {
			if matches(p.Name, p.Protocol) {
				add(p.Port, own)
			}
		}
	}
	if len(out) == 0 {
		return nil, errNoName
	}
	return out, nil
}

// endpoints calls visit for the ready endpoints of a service. The controller of the slices marks
// the endpoints of a service that publishes not-ready addresses as ready.
func (s *Server) endpoints(service *corev1.Service, visit func(*discoveryv1.EndpointSlice, *discoveryv1.Endpoint)) {
	found, _ := s.slices.ByIndex(byService, service.Namespace+"/"+service.Name)
	for _, o := range found {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || slice.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; ptr.Deref(e.Conditions.Ready, true) {
				visit(slice, e)
			}
		}
	}
}

// hostOf returns an endpoint's name: its pod's host name, or its address with dashes.
func hostOf(e *discoveryv1.Endpoint) string {
	if h := ptr.Deref(e.Hostname, ""); h != "" || len(e.Addresses) == 0 {
		return h
	}
	return strings.ReplaceAll(e.Addresses[0], ".", "-")
}

// addresses returns A records of the IPv4 addresses, without duplicates.
func addresses(ips []string) []dns.RR {
	var out []dns.RR
	for _, s := range slices.Compact(slices.Sorted(slices.Values(ips))) {
		if ip := net.ParseIP(s); ip.To4() != nil {
			out = append(out, a(ip))
		}
	}
	return out
}

func a(ip net.IP) dns.RR { return &dns.A{Hdr: header(dns.TypeA), A: ip.To4()} }

func header(kind uint16) dns.RR_Header {
	return dns.RR_Header{Rrtype: kind, Class: dns.ClassINET, Ttl: TTL}
}
