package pods

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

func ended(name string, code int32, r *execapi.Report) corev1.ContainerStatus {
	t := &corev1.ContainerStateTerminated{ExitCode: code}
	if r != nil {
		t.Message, _ = r.Encode(execapi.MaxMessage)
	}
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: t}}
}

func TestObserve(t *testing.T) {
	saved := func(name, key string) execapi.Saved {
		return execapi.Saved{Name: name, Location: json.RawMessage(`{"s3":{"key":"` + key + `"}}`)}
	}
	artifact := func(name, key string) wf.Artifact {
		return wf.Artifact{Name: name, ArtifactLocation: wf.ArtifactLocation{S3: &wf.S3Artifact{Key: key}}}
	}
	succeeded, failed := wf.PhaseSucceeded, wf.PhaseFailed
	for name, c := range map[string]struct {
		phase  corev1.PodPhase
		inits  []corev1.ContainerStatus
		mains  []corev1.ContainerStatus
		result *wf.WorkflowTaskResult
		want   engine.PodState
	}{
		"a plain pod": {
			phase: corev1.PodSucceeded, mains: []corev1.ContainerStatus{ended("main", 0, nil)},
			want: engine.PodState{ExitCode: ptr.To[int32](0), Containers: map[string]engine.ContainerState{"main": {Phase: succeeded}}},
		},
		"outputs of main, and what wait has uploaded": {
			phase: corev1.PodSucceeded, inits: []corev1.ContainerStatus{ended("wait", 0, &execapi.Report{Artifacts: []execapi.Saved{saved("out", "k")}})},
			mains: []corev1.ContainerStatus{ended("main", 0, &execapi.Report{Result: ptr.To("r"), Parameters: map[string]string{"b": "2", "a": "1"}})},
			want: engine.PodState{
				ExitCode: ptr.To[int32](0), Containers: map[string]engine.ContainerState{"main": {Phase: succeeded}},
				Outputs: &wf.Outputs{
					Result: ptr.To("r"), Artifacts: []wf.Artifact{artifact("out", "k")},
					Parameters: []wf.Parameter{{Name: "a", Value: wf.Any("1")}, {Name: "b", Value: wf.Any("2")}},
				},
			},
		},
		"an upload that failed is an error, though main succeeded": {
			phase: corev1.PodSucceeded, inits: []corev1.ContainerStatus{ended("wait", 0, &execapi.Report{Failed: true, Message: "no bucket"})},
			mains: []corev1.ContainerStatus{ended("main", 0, nil)},
			want: engine.PodState{
				Phase: corev1.PodFailed, Error: true, Message: "no bucket", ExitCode: ptr.To[int32](0),
				Containers: map[string]engine.ContainerState{"main": {Phase: succeeded}}, Outputs: &wf.Outputs{},
			},
		},
		"an input that cannot be loaded": {
			phase: corev1.PodFailed, inits: []corev1.ContainerStatus{ended("init", 64, &execapi.Report{Failed: true, Message: "no object"})},
			mains: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}},
			want: engine.PodState{
				Error: true, Message: "init: no object", Outputs: &wf.Outputs{},
				Containers: map[string]engine.ContainerState{"main": {Phase: wf.PhasePending}},
			},
		},
		"an executor that failed after its command succeeded": {
			phase: corev1.PodFailed, mains: []corev1.ContainerStatus{ended("main", 64, &execapi.Report{Failed: true, Message: "no file", Exit: ptr.To(0)})},
			want: engine.PodState{
				Error: true, Message: "no file", ExitCode: ptr.To[int32](0), Outputs: &wf.Outputs{},
				Containers: map[string]engine.ContainerState{"main": {Phase: wf.PhaseError, Message: "no file"}},
			},
		},
		"a command's own message": {
			phase: corev1.PodFailed, mains: []corev1.ContainerStatus{ended("main", 3, &execapi.Report{Message: "out of luck"})},
			want: engine.PodState{
				Message: "main: Error (exit code 3): out of luck", ExitCode: ptr.To[int32](3), Outputs: &wf.Outputs{},
				Containers: map[string]engine.ContainerState{"main": {Phase: failed, Message: "Error (exit code 3)"}},
			},
		},
		"a set of containers: who failed, and who did not run because of it": {
			phase: corev1.PodFailed,
			mains: []corev1.ContainerStatus{ended("a", 64, &execapi.Report{Omitted: "b"}), ended("b", 1, nil), ended("main", 64, &execapi.Report{Omitted: "a"})},
			want: engine.PodState{
				Message: "b: Error (exit code 1)", ExitCode: ptr.To[int32](64), Outputs: &wf.Outputs{},
				Containers: map[string]engine.ContainerState{
					"a": {Phase: wf.PhaseOmitted, Message: "omitted: container b failed"}, "b": {Phase: failed, Message: "Error (exit code 1)"},
					"main": {Phase: wf.PhaseOmitted, Message: "omitted: container a failed"},
				},
			},
		},
		"large outputs are awaited": {
			phase: corev1.PodSucceeded, mains: []corev1.ContainerStatus{ended("main", 0, &execapi.Report{Elsewhere: true})},
			want: engine.PodState{
				ExitCode: ptr.To[int32](0), Awaited: true, Containers: map[string]engine.ContainerState{"main": {Phase: succeeded}}, Outputs: &wf.Outputs{},
			},
		},
		"until they are there": {
			phase: corev1.PodSucceeded, mains: []corev1.ContainerStatus{ended("main", 0, &execapi.Report{Elsewhere: true})},
			result: &wf.WorkflowTaskResult{Outputs: &wf.Outputs{Result: ptr.To("large")}},
			want: engine.PodState{
				ExitCode: ptr.To[int32](0), Containers: map[string]engine.ContainerState{"main": {Phase: succeeded}}, Outputs: &wf.Outputs{Result: ptr.To("large")},
			},
		},
		"a sidecar that was ended by a signal": {
			phase: corev1.PodFailed, inits: []corev1.ContainerStatus{ended("side", 143, nil)}, mains: []corev1.ContainerStatus{ended("main", 2, nil)},
			want: engine.PodState{
				Message: "main: Error (exit code 2)", ExitCode: ptr.To[int32](2),
				Containers: map[string]engine.ContainerState{"main": {Phase: failed, Message: "Error (exit code 2)"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{wf.AnnotationNodeID: "id"}},
				Status:     corev1.PodStatus{Phase: c.phase, InitContainerStatuses: c.inits, ContainerStatuses: c.mains},
			}
			c.want.NodeID = "id"
			if c.want.Phase == "" {
				c.want.Phase = c.phase
			}
			if diff := cmp.Diff(c.want, Observe(pod, c.result)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestFindRepository(t *testing.T) {
	maps := map[string]*corev1.ConfigMap{
		"ns/artifact-repositories":   {Data: map[string]string{"mine": "s3: {bucket: mine, keyFormat: f}\narchiveLogs: true", "bad": "s3: {}", "other": "plugin: {}", "azure": "azure: {container: c}", "hdfs": "hdfs: {pathFormat: f}", "gcs": "gcs: {bucket: b, keyFormat: f, serviceAccountKeySecret: {name: s, key: k}}"}},
		"main/artifact-repositories": {Data: map[string]string{"std": "volume: {claimName: c}"}},
		"main/own":                   {Data: map[string]string{"k": "artifactory: {repoURL: http://a/b}"}},
	}
	maps["main/artifact-repositories"].Annotations = map[string]string{wf.AnnotationDefaultRepository: "std"}
	get := func(namespace, name string) *corev1.ConfigMap { return maps[namespace+"/"+name] }
	for name, c := range map[string]struct {
		ref   *wf.ArtifactRepositoryRef
		where []string
		want  *Repository
		err   string
	}{
		"a key in the own namespace":         {&wf.ArtifactRepositoryRef{Key: "mine"}, []string{"ns", "main"}, &Repository{Location: wf.ArtifactLocation{S3: &wf.S3Artifact{Bucket: "mine"}}, KeyFormat: "f", ArchiveLogs: true}, ""},
		"the default of the other namespace": {nil, []string{"ns", "main"}, &Repository{Location: wf.ArtifactLocation{Volume: &wf.VolumeArtifact{ClaimName: "c"}}}, ""},
		"another ConfigMap":                  {&wf.ArtifactRepositoryRef{ConfigMap: "own", Key: "k"}, []string{"ns", "main"}, &Repository{Location: wf.ArtifactLocation{Artifactory: &wf.ArtifactoryArtifact{URL: "http://a/b"}}}, ""},
		"none is no error":                   {nil, []string{"elsewhere"}, nil, ""},
		"a key that is missing":              {&wf.ArtifactRepositoryRef{Key: "nope"}, []string{"ns"}, nil, "artifactRepositoryRef: ConfigMap ns/artifact-repositories has no key 'nope'"},
		"a ConfigMap that is missing":        {&wf.ArtifactRepositoryRef{ConfigMap: "nope"}, []string{"ns"}, nil, "artifactRepositoryRef: ConfigMap 'nope' not found in [ns]"},
		"no bucket":                          {&wf.ArtifactRepositoryRef{Key: "bad"}, []string{"ns"}, nil, "artifact repository ns/artifact-repositories, key 'bad': s3.bucket: is required"},
		"Azure without an endpoint":          {&wf.ArtifactRepositoryRef{Key: "azure"}, []string{"ns"}, nil, "artifact repository ns/artifact-repositories, key 'azure': azure: needs endpoint and container"},
		"HDFS without a name node":           {&wf.ArtifactRepositoryRef{Key: "hdfs"}, []string{"ns"}, nil, "artifact repository ns/artifact-repositories, key 'hdfs': hdfs.addresses: is required"},
		"a bucket of Google":                 {&wf.ArtifactRepositoryRef{Key: "gcs"}, []string{"ns"}, &Repository{Location: wf.ArtifactLocation{GCS: &wf.GCSArtifact{Bucket: "b", ServiceAccountKeySecret: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k"}}}, KeyFormat: "f"}, ""},
		"an unknown store":                   {&wf.ArtifactRepositoryRef{Key: "other"}, []string{"ns"}, nil, "artifact repository ns/artifact-repositories, key 'other': names no store that is supported: s3, gcs, azure, oss, hdfs, artifactory, volume"},
	} {
		t.Run(name, func(t *testing.T) {
			got, status, err := FindRepository(c.ref, c.where, get)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if diff := cmp.Diff(c.want, got); diff != "" || message != c.err {
				t.Errorf("%s\nerror %q, want %q", diff, message, c.err)
			}
			if (status != nil) != (got != nil) {
				t.Errorf("status %v", status)
			}
		})
	}
}

// TestLogs checks the addresses of logs in every kind of store, whole or by the repository.
func TestLogs(t *testing.T) {
	const repository = "{s3: {bucket: r}}"
	for want, c := range map[string]struct{ artifact, repository string }{
		"s3://b/k":                      {"{s3: {bucket: b, key: k}}", repository},
		"s3://r/deep/k":                 {"{s3: {key: deep/k}}", repository},
		"gs://b/k":                      {"{gcs: {key: k}}", "{gcs: {bucket: b}}"},
		"https://a.example/acct/c/k":    {"{azure: {blob: k}}", "{azure: {endpoint: 'https://a.example/acct/', container: c}}"},
		"oss://b/k":                     {"{oss: {key: k}}", "{oss: {endpoint: e, bucket: b}}"},
		"hdfs://a:1,b:1/k":              {"{hdfs: {path: /k}}", "{hdfs: {addresses: ['a:1', 'b:1']}}"},
		"claim c, deep/k":               {"{volume: {key: ../deep/k}}", "{volume: {claimName: c}}"},
		"/data/k of a node":             {"{volume: {key: k}}", "{volume: {hostPath: /data}}"},
		"https://h.example/k":           {"{http: {url: 'https://me:s3cret@h.example/k?signature=s3cret'}}", repository},
		"https://artifacts.example/r/k": {"{artifactory: {url: 'https://artifacts.example/r/k'}}", "{}"},
		"k":                             {"{s3: {key: k}}", ""},
	} {
		var a, r wf.ArtifactLocation
		if err := yaml.UnmarshalStrict([]byte(c.artifact), &a); err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(c.repository), &r); err != nil {
			t.Fatal(err)
		}
		w := &wf.Workflow{}
		if c.repository != "" {
			w.Status.ArtifactRepositoryRef = &wf.ArtifactRepositoryRefStatus{ArtifactRepository: &r}
		}
		kept := []wf.Artifact{{Name: "main-logs", ArtifactLocation: a}, {Name: "out", ArtifactLocation: a}, {Name: "side-logs", ArtifactLocation: a, Deleted: true}}
		got := Logs(w, wf.Nodes{
			"1": {Name: "w.a", Type: wf.NodePod, Outputs: &wf.Outputs{Artifacts: kept}}, "2": {Name: "w", Type: wf.NodeDAG, Outputs: &wf.Outputs{Artifacts: kept}}, "3": {Name: "w.b", Type: wf.NodePod},
		})
		if diff := cmp.Diff([]string{"w.a: " + want}, got); diff != "" {
			t.Error(diff)
		}
	}
}
