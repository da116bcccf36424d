package settings

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// TestEveryKeyIsDecided compares the table of docs/workflow-configuration.md with the code.
func TestEveryKeyIsDecided(t *testing.T) {
	data, err := os.ReadFile("../../../docs/workflow-configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	acted, not := map[string]bool{}, map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, rest, found := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !found || !strings.HasPrefix(line, "| `") {
			continue
		}
		if why, without := strings.CutPrefix(rest, "no effect: "); without {
			not[key] = strings.TrimSuffix(strings.TrimSpace(why), " |")
		} else if strings.HasPrefix(rest, "acted on: ") {
			acted[key] = true
		} else {
			t.Errorf("%s: %s", key, rest)
		}
	}
	if got, want := slices.Sorted(maps.Keys(acted)), slices.Sorted(maps.Keys(actedOn)); !slices.Equal(got, want) {
		t.Errorf("documented as acted on: %q; in the code: %q", got, want)
	}
	if !maps.Equal(not, notActedOn) {
		t.Errorf("documented as without effect: %q; in the code: %q", not, notActedOn)
	}
}

// everything is a configuration as people write it, with one YAML text for each key.
const everything = `
instanceID: blue
parallelism: "10"
namespaceParallelism: 4
navColor: red
links: |
  - name: Logs
    scope: workflow
    url: http://logs/{{metadata.name}}
workflowDefaults: |
  metadata:
    labels: {team: data}
    annotations: {example.com/Note: by default}
  spec:
    serviceAccountName: runner
    ttlStrategy: {secondsAfterSuccess: 60}
    parallelism: 3
workflowRestrictions: |
  templateReferencing: Strict
retentionPolicy: |
  completed: 10
  errored: 1
podSpecLogStrategy: "failedPod: true"
artifactRepository: |
  archiveLogs: true
  s3: {bucket: b, endpoint: e, accessKeySecret: {name: s, key: a}, secretKeySecret: {name: s, key: b}}
mainContainer: |
  resources: {requests: {cpu: 1, memory: 64Mi}}
executor: |
  image: quay.io/argoproj/argoexec:v4
  args: [--loglevel, debug]
  resources: {limits: {memory: 1Gi}}
images: |
  example/tool:1: {entrypoint: [/tool], cmd: [serve]}
podGCGracePeriodSeconds: "3"
podGCDeleteDelayDuration: 30s
nodeEvents: |
  enabled: false
  sendAsPod: true
workflowEvents: |
  enabled: true
persistence: |
  nodeStatusOffLoad: true
  archive: true
  archiveTTL: 30d
  archiveLabelSelector: {matchLabels: {team: data}}
  clusterName: east
  connectionPool: {maxIdleConns: 100, maxOpenConns: 0}
  postgresql:
    host: postgres
    port: 5433
    database: argo
    tableName: argo_nodes
    userNameSecret: {name: db, key: user}
    passwordSecret: {name: db, key: password}
    ssl: true
    sslMode: verify-full
workflowDefault: "spec: {}"
`

func TestParse(t *testing.T) {
	var keys map[string]any
	if err := yaml.Unmarshal([]byte(everything), &keys); err != nil {
		t.Fatal(err)
	}
	each := map[string]string{}
	var whole strings.Builder
	for key, value := range keys {
		text, isText := value.(string)
		if !isText {
			out, _ := yaml.Marshal(value)
			text = string(out)
		}
		each[key] = text
		whole.WriteString(key + ":\n  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n")
	}
	for form, data := range map[string]map[string]string{"a key each": each, "one text": {"config": whole.String()}} {
		s, err := Parse(data)
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		if s.InstanceID != "blue" || s.Parallelism != 10 || s.NamespaceParallelism != 4 || s.Restriction != Strict {
			t.Errorf("%s: %+v", form, s)
		}
		if s.Retention != (Retention{Completed: 10, Errored: 1}) || s.LogSpecs != (LogSpecs{FailedPod: true}) {
			t.Errorf("%s: %+v %+v", form, s.Retention, s.LogSpecs)
		}
		if d := s.Defaults; d.Metadata.Labels["team"] != "data" || d.Spec.ServiceAccountName != "runner" || *d.Spec.Parallelism != 3 {
			t.Errorf("%s: defaults %+v", form, d)
		}
		if s.Repository == nil || s.Repository.Location.S3.Bucket != "b" || !s.Repository.ArchiveLogs {
			t.Errorf("%s: repository %+v", form, s.Repository)
		}
		if cpu := s.MainContainer.Resources.Requests[corev1.ResourceCPU]; cpu.String() != "1" {
			t.Errorf("%s: main %+v", form, s.MainContainer)
		}
		if memory := s.Executor.Resources.Limits[corev1.ResourceMemory]; memory.String() != "1Gi" || s.Executor.Image != "" {
			t.Errorf("%s: executor %+v", form, s.Executor)
		}
		if e := s.Images["example/tool:1"]; !slices.Equal(e.Command, []string{"/tool"}) || !slices.Equal(e.Args, []string{"serve"}) {
			t.Errorf("%s: images %v", form, s.Images)
		}
		if *s.PodGCGrace != 3 || *s.PodGCDelay != 30*time.Second || *s.NodeEvents || !*s.WorkflowEvents {
			t.Errorf("%s: %+v", form, s)
		}
		p := s.Persistence
		if p == nil || p.TTL != 30*24*time.Hour || p.Labels.String() != "team=data" || p.Username.Name != "db" || p.Password.Key != "password" {
			t.Fatalf("%s: persistence %+v", form, p)
		}
		if p.Scheme != "postgres" || p.Host != "postgres" || p.Port != 5433 || p.Database != "argo" || p.NodesTable != "argo_nodes" ||
			p.ClusterName != "east" || !p.Migrate || !p.Archive || !p.MoveNodes || p.Parameters["sslmode"] != "verify-full" {
			t.Errorf("%s: persistence %+v", form, p)
		}
		var unused []string
		for _, u := range s.Unused {
			unused = append(unused, u.Key)
		}
		want := []string{"executor.args", "executor.image", "links", "navColor", "nodeEvents.sendAsPod", "persistence.connectionPool", "workflowDefault"}
		if !slices.Equal(unused, want) {
			t.Errorf("%s: without effect %q, want %q", form, unused, want)
		}
	}
}

func TestMalformedConfigurations(t *testing.T) {
	for name, c := range map[string]struct {
		data map[string]string
		want string
	}{
		"no YAML":                  {map[string]string{"config": "a: b: c"}, "config: "},
		"config is not alone":      {map[string]string{"config": "", "parallelism": "1"}, "config: must be the only key"},
		"no object":                {map[string]string{"config": "[]"}, "config: "},
		"a text for a number":      {map[string]string{"parallelism": "many"}, "parallelism: many is not a whole number"},
		"a negative number":        {map[string]string{"namespaceParallelism": "-1"}, "namespaceParallelism: -1 is negative"},
		"an unknown field":         {map[string]string{"workflowDefaults": "spec: {ttlStrategi: {}}"}, `workflowDefaults: strict decoding error: unknown field "spec.ttlStrategi"`},
		"a wrong type":             {map[string]string{"config": "workflowDefaults: {spec: {parallelism: [1]}}"}, "workflowDefaults: "},
		"a label that is none":     {map[string]string{"workflowDefaults": "metadata: {labels: {team: a b}}"}, "workflowDefaults: metadata.labels[team]: "},
		"a default instance":       {map[string]string{"workflowDefaults": "metadata: {labels: {workflows.argoproj.io/controller-instanceid: x}}"}, "workflowDefaults: metadata.labels: "},
		"an unknown restriction":   {map[string]string{"workflowRestrictions": "templateReferencing: strict"}, `workflowRestrictions: templateReferencing: "strict" is none of`},
		"a negative retention":     {map[string]string{"retentionPolicy": "failed: -3"}, "retentionPolicy: "},
		"an instance with a space": {map[string]string{"instanceID": "a b"}, "instanceID: "},
		"an empty image":           {map[string]string{"images": "i: {}"}, "images: i: "},
		"two databases":            {map[string]string{"persistence": "{archive: true, postgresql: {host: a, database: b}, mysql: {host: a, database: b}}"}, "persistence: postgresql and mysql"},
		"no database":              {map[string]string{"persistence": "archive: true"}, "persistence: archive and nodeStatusOffLoad need postgresql or mysql"},
		"a token of a cloud":       {map[string]string{"persistence": "{archive: true, postgresql: {host: a, database: b, azureToken: {enabled: true}}}"}, "persistence: azureToken"},
		"a table that is SQL":      {map[string]string{"persistence": "{archive: true, mysql: {host: a, database: b, tableName: 'x; drop'}}"}, "persistence: tableName"},
		"a wrong TTL":              {map[string]string{"persistence": "{archive: true, archiveTTL: 3w, mysql: {host: a, database: b}}"}, "persistence: archiveTTL"},
		"locks of no controller":   {map[string]string{"synchronization": "postgresql: {host: a, database: b}"}, "synchronization: controllerName: "},
		"a table of locks in SQL":  {map[string]string{"synchronization": "{controllerName: c, stateTableName: 'x; drop', mysql: {host: a, database: b}}"}, "synchronization: stateTableName: "},
		"locks that never poll":    {map[string]string{"synchronization": "{controllerName: c, pollSeconds: 0, mysql: {host: a, database: b}}"}, "synchronization: pollSeconds: 0"},
		"a controller dead alive":  {map[string]string{"synchronization": "{controllerName: c, inactiveControllerSeconds: 60, mysql: {host: a, database: b}}"}, "synchronization: inactiveControllerSeconds: must be more"},
		"locks in two databases":   {map[string]string{"synchronization": "{controllerName: c, postgresql: {host: a, database: b}, mysql: {host: a, database: b}}"}, "synchronization: postgresql and mysql"},
		"an unknown field of it":   {map[string]string{"persistence": "{archive: true, arhciveTTL: 3d}"}, `persistence: json: unknown field "arhciveTTL"`},
		"two wrong keys":           {map[string]string{"parallelism": "x", "instanceID": "a b"}, "parallelism: x"},
	} {
		_, err := Parse(c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}
}

// TestAnEmptyConfiguration checks that keys without a value configure nothing.
func TestAnEmptyConfiguration(t *testing.T) {
	for _, data := range []map[string]string{nil, {"config": ""}, {"parallelism": "", "workflowDefaults": ""}, {"artifactRepository": "{}"}} {
		s, err := Parse(data)
		if err != nil || s.Limits() || s.Defaults != nil || s.Repository != nil || len(s.Unused) > 0 {
			t.Errorf("%v: %+v, %v", data, s, err)
		}
	}
}

func TestRestrictions(t *testing.T) {
	strict := &Settings{Restriction: Strict, From: "argo/config"}
	for text, want := range map[string]string{
		`{entrypoint: main, templates: [{name: main}]}`: "workflowTemplateRef: is required",
		`{workflowTemplateRef: {name: t}, arguments: {parameters: [{name: a, value: 1}]}, entrypoint: other, ttlStrategy: {}, suspend: true}`: "",
		`{workflowTemplateRef: {name: t}, podSpecPatch: '{}'}`:                                                                                "podSpecPatch: only the template may set",
		`{workflowTemplateRef: {name: t}, serviceAccountName: admin, volumes: [{name: v}]}`:                                                   "serviceAccountName, volumes: only",
		`{workflowTemplateRef: {name: t}, templates: [{name: mine}]}`:                                                                         "templates: only",
	} {
		spec := &wf.WorkflowSpec{}
		if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
			t.Fatal(err)
		}
		err := strict.Refuses(spec)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
		if err := (&Settings{}).Refuses(spec); err != nil {
			t.Errorf("%s is refused without a restriction: %v", text, err)
		}
	}
}

func TestDefaultsGiveWay(t *testing.T) {
	s, err := Parse(map[string]string{"workflowDefaults": `
spec:
  serviceAccountName: fallback
  parallelism: 7
  ttlStrategy: {secondsAfterCompletion: 1}
  arguments: {parameters: [{name: a, value: default}, {name: b, value: default}]}`})
	if err != nil {
		t.Fatal(err)
	}
	spec := &wf.WorkflowSpec{}
	if err := yaml.UnmarshalStrict([]byte(`
serviceAccountName: own
entrypoint: main
arguments: {parameters: [{name: b, value: own}]}
templates: [{name: main, suspend: {}}]`), spec); err != nil {
		t.Fatal(err)
	}
	out, err := s.Defaults.Merge(spec)
	if err != nil {
		t.Fatal(err)
	}
	if out.ServiceAccountName != "own" || *out.Parallelism != 7 || *out.TTLStrategy.SecondsAfterCompletion != 1 {
		t.Errorf("%+v", out)
	}
	if p := out.Arguments.Parameters; len(p) != 2 || *p[0].Value != "default" || *p[1].Value != "own" {
		t.Errorf("arguments %+v", p)
	}
	if &out.Templates[0] != &spec.Templates[0] {
		t.Error("the templates are a copy: runs would not share what they compile")
	}
}

func TestTheDatabaseOfLocks(t *testing.T) {
	s, err := Parse(map[string]string{"synchronization": `
enableAPI: true
controllerName: east
limitTableName: limits
pollSeconds: 2
semaphoreLimitCacheSeconds: 5
connectionPool: {maxOpenConns: 3}
mysql:
  host: db
  database: locks
  userNameSecret: {name: db, key: user}
  options: {charset: utf8mb4}
`})
	if err != nil {
		t.Fatal(err)
	}
	want := &Synchronization{
		Connection: Connection{Scheme: "mysql", Host: "db", Database: "locks", Parameters: map[string]string{"charset": "utf8mb4"},
			Username: corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "user"}},
		ControllerName: "east", LimitTable: "limits", StateTable: "sync_state", ControllerTable: "sync_controller", LockTable: "sync_lock",
		Migrate: true, Poll: 2 * time.Second, Heartbeat: time.Minute, Inactive: 5 * time.Minute,
	}
	if diff := cmp.Diff(want, s.Synchronization); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var unused []string
	for _, u := range s.Unused {
		unused = append(unused, u.Key)
	}
	if want := []string{"synchronization.connectionPool", "synchronization.enableAPI", "synchronization.semaphoreLimitCacheSeconds"}; !slices.Equal(unused, want) {
		t.Errorf("without effect %q, want %q", unused, want)
	}
	if s, err := Parse(map[string]string{"synchronization": "semaphoreLimitCacheSeconds: 5"}); err != nil || s.Synchronization != nil {
		t.Errorf("without a database: %+v, %v", s, err)
	}
}
