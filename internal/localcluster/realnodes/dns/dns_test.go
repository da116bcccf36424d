package dns

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestNamesOfServicesAndPods(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(localtest.Start(t).RESTConfig())
	port := []corev1.ServicePort{{Name: "http", Port: 80}}
	for name, spec := range map[string]corev1.ServiceSpec{
		"web": {ClusterIP: "10.0.5.5", Ports: port},
		"job": {ClusterIP: corev1.ClusterIPNone, Ports: port},
		"out": {Type: corev1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if _, err := client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	endpoint := func(ip, host string, ready bool) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
		if host != "" {
			e.Hostname = &host
		}
		return e
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "job-x", Labels: map[string]string{discoveryv1.LabelServiceName: "job"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{endpoint("10.244.1.2", "job-a-0", true), endpoint("10.244.2.2", "", true), endpoint("10.244.2.3", "late", false)},
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := New(client, "cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.factory.Start(ctx.Done())
	s.factory.WaitForCacheSync(ctx.Done())

	for _, tc := range []struct {
		name  string
		qtype uint16
		rcode int
		want  []string
	}{
		{"web.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.0.5.5"}},
		{"WEB.default.svc.Cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.0.5.5"}},
		{"web.default.svc.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, nil},
		{"job.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.1.2", "10.244.2.2"}},
		{"job-a-0.job.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.1.2"}},
		{"10-244-2-2.job.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.2.2"}},
		{"late.job.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"job-a-0.web.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess, []string{"80 web.default.svc.cluster.local."}},
		{"_http._tcp.job.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess, []string{
			"8080 10-244-2-2.job.default.svc.cluster.local.", "8080 job-a-0.job.default.svc.cluster.local."}},
		{"_http._udp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, nil},
		{"out.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"web.default.svc.cluster.local."}},
		{"10-244-9-9.default.pod.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.9.9"}},
		{"nobody.default.pod.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"none.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, nil},
		{"cluster.local.", dns.TypeA, dns.RcodeSuccess, nil},
		{"example.com.", dns.TypeA, dns.RcodeNameError, nil},
	} {
		reply := s.Answer(new(dns.Msg).SetQuestion(tc.name, tc.qtype))
		var got []string
		for _, r := range reply.Answer {
			switch r := r.(type) {
			case *dns.A:
				got = append(got, r.A.String())
			case *dns.SRV:
				got = append(got, fmt.Sprint(r.Port, " ", r.Target))
			case *dns.CNAME:
				got = append(got, r.Target)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(tc.want, got); diff != "" || reply.Rcode != tc.rcode {
			t.Errorf("%s %s: %s (-want +got)\n%s", tc.name, dns.TypeToString[tc.qtype], dns.RcodeToString[reply.Rcode], diff)
		}
		if _, err := reply.Pack(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestAnswersDoNotChangeTheService checks that an answer leaves the informer's object as it is.
func TestAnswersDoNotChangeTheService(t *testing.T) {
	service := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.2", ClusterIPs: []string{"10.0.0.2", "10.0.0.1"}}}
	before := service.DeepCopy()
	if records := (&Server{}).service(service); len(records) != 2 {
		t.Errorf("records %v", records)
	}
	if diff := cmp.Diff(before, service); diff != "" {
		t.Error(diff)
	}
}
