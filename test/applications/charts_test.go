package applications

import (
	"net/http/httptest"

	"lockstep.dev/lockstep/internal/application/chart/charttest"
)

// serveCharts publishes the charts that cases use, and returns their address.
func serveCharts() string {
	s := &charttest.Server{User: "me", Password: "secret"}
	web := map[string]string{
		"values.yaml":        "replicas: 1\nconfig: true\nextra: none\n",
		"values.schema.json": `{"properties": {"replicas": {"type": "integer"}}}`,
		"templates/deployment.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ .Release.Name }}-{{ .Chart.Name }}", labels: {app.kubernetes.io/managed-by: "{{ .Release.Service }}"}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: "{{ .Release.Name }}"}}
  template:
    metadata: {labels: {app: "{{ .Release.Name }}"}}
    spec: {containers: [{name: main, image: nginx}]}
`,
		"templates/config.yaml": `
{{- if .Values.config }}
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-{{ .Chart.Name }}"}
data: {version: {{ .Chart.Version | quote }}, install: {{ .Release.IsInstall | quote }}, extra: {{ .Values.extra }}}
{{- end }}
`,
		"templates/secret.yaml": `
apiVersion: v1
kind: Secret
metadata: {name: "{{ .Release.Name }}-{{ .Chart.Name }}"}
stringData: {password: {{ randAlphaNum 16 }}}
`,
	}
	for _, v := range []string{"1.0.0", "1.1.0"} {
		s.Publish("web", v, charttest.Pack("web", v, web))
	}
	job := func(name, hook string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: " + name + ", annotations: {helm.sh/hook: " + hook + "}}\n" +
			"spec: {template: {metadata: {annotations: {lockstep.dev/sim-duration: 10ms}}, spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}\n"
	}
	s.Publish("hooks", "1.0.0", charttest.Pack("hooks", "1.0.0", map[string]string{
		"templates/before.yaml": job("before", "pre-install"), "templates/after.yaml": job("after", "post-install"), "templates/bye.yaml": job("bye", "pre-delete"),
		"templates/main.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: main}\n",
	}))
	s.Publish("kinds", "1.0.0", charttest.Pack("kinds", "1.0.0", map[string]string{
		"crds/thing.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.things.example.com}
spec:
  group: things.example.com
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}]
`,
		"templates/thing.yaml": "apiVersion: things.example.com/v1\nkind: Thing\nmetadata: {name: first}\nspec: {size: 1}\n",
	}))
	return httptest.NewServer(s).URL // for as long as the process runs
}
