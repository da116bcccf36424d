package steps

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// endpointsOf returns the addresses of a Service or an Ingress.
func endpointsOf(o map[string]any) []map[string]any {
	u := unstructured.Unstructured{Object: o}
	var out []map[string]any
	if u.GetKind() == "Ingress" {
		rules, _, _ := unstructured.NestedSlice(o, "spec", "rules")
		tls, _, _ := unstructured.NestedSlice(o, "spec", "tls")
		protocol, port := "http", int64(80)
		if len(tls) > 0 {
			protocol, port = "https", 443
		}
		for _, r := range rules {
			rule, _ := r.(map[string]any)
			paths, _, _ := unstructured.NestedSlice(rule, "http", "paths")
			for _, p := range paths {
				path, _ := p.(map[string]any)
				out = append(out, map[string]any{
					"protocol": "TCP", "appProtocol": protocol, "host": rule["host"], "port": port, "path": path["path"], "inner": false,
				})
			}
		}
		return out
	}
	kind, _, _ := unstructured.NestedString(o, "spec", "type")
	ports, _, _ := unstructured.NestedSlice(o, "spec", "ports")
	hosts, inner := []string{u.GetName() + "." + u.GetNamespace()}, true
	if kind == "LoadBalancer" {
		hosts, inner = nil, false
		addresses, _, _ := unstructured.NestedSlice(o, "status", "loadBalancer", "ingress")
		for _, x := range addresses {
			m, _ := x.(map[string]any)
			if host := strings.TrimSpace(text(m, "hostname") + text(m, "ip")); host != "" {
				hosts = append(hosts, host)
			}
		}
	}
	for _, host := range hosts {
		for _, p := range ports {
			port, _ := p.(map[string]any)
			e := map[string]any{"protocol": port["protocol"], "host": host, "port": port["port"], "inner": inner}
			if name := text(port, "name"); name != "" {
				e["portName"] = name
			}
			out = append(out, e)
		}
	}
	return out
}
