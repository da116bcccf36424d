package realnodes

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/artifacts/artifactstest"
)

// blobKey is the key of the account that Azure's emulator has.
var blobKey = base64.StdEncoding.EncodeToString([]byte("a key of the emulator's account"))

// storePods run servers of artifact stores with the machine's own programs and what hack/stores.sh
// has fetched, whose libraries are not in the image. DIR is a directory of the test.
const storePods = `
apiVersion: v1
kind: Pod
metadata: {name: google, labels: {store: google}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, "mkdir -p /data/bucket && exec /stores/fake-gcs-server -scheme http -host 0.0.0.0 -port 4443 -backend memory -data /data -public-host google.NAMESPACE.svc.cluster.local:4443 -external-url http://google.NAMESPACE.svc.cluster.local:4443"]
    readinessProbe: {tcpSocket: {port: 4443}, periodSeconds: 1}
    volumeMounts: [{name: stores, mountPath: /stores}]
  volumes: [{name: stores, hostPath: {path: STORES}}]
---
apiVersion: v1
kind: Pod
metadata: {name: azure, labels: {store: azure}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: localhost/busybox:1
    command: [/bin/busybox, sh, -c, "/bin/busybox ln -s usr/lib /lib; /bin/busybox ln -s usr/lib64 /lib64; exec NODE /stores/azurite/node_modules/azurite/dist/src/blob/main.js --blobHost 0.0.0.0 --blobPort 10000 --location /data --silent --skipApiVersionCheck --disableTelemetry --disableProductStyleUrl"]
    env: [{name: AZURITE_ACCOUNTS, value: "lockstep:BLOBKEY"}]
    readinessProbe: {tcpSocket: {port: 10000}, periodSeconds: 1}
    volumeMounts: [{name: stores, mountPath: /stores}, {name: usr, mountPath: /usr}, {name: data, mountPath: /data}]
  volumes: [{name: stores, hostPath: {path: STORES}}, {name: usr, hostPath: {path: /usr}}, {name: data, hostPath: {path: DIR}}]
---
apiVersion: v1
kind: Pod
metadata: {name: minio, labels: {store: minio}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: localhost/busybox:1
    command: [/stores/minio, server, /data, --address, ":9000"]
    env: [{name: MINIO_ROOT_USER, value: someone}, {name: MINIO_ROOT_PASSWORD, value: s3cret-s3cret}, {name: MINIO_KMS_SECRET_KEY, value: "artifacts:KMSKEY"}]
    readinessProbe: {httpGet: {path: /minio/health/ready, port: 9000}, periodSeconds: 1}
    volumeMounts: [{name: stores, mountPath: /stores}]
  volumes: [{name: stores, hostPath: {path: STORES}}]
---
apiVersion: v1
kind: Pod
metadata: {name: servers, labels: {store: servers}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: localhost/busybox:1
    command: [/bin/busybox, sh, -c, "/bin/busybox ln -s usr/lib /lib; /bin/busybox ln -s usr/lib64 /lib64; exec /test/TEST"]
    env: [{name: LOCKSTEP_TEST_AS_STORES, value: /repositories}]
    readinessProbe: {tcpSocket: {port: 8083}, periodSeconds: 1}
    volumeMounts: [{name: test, mountPath: /test}, {name: usr, mountPath: /usr}, {name: repositories, mountPath: /repositories}]
  volumes: [{name: test, hostPath: {path: TESTDIR}}, {name: usr, hostPath: {path: /usr}}, {name: repositories, hostPath: {path: DIR/repositories}}]
---
apiVersion: v1
kind: Pod
metadata: {name: hadoop, labels: {store: hadoop}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: localhost/busybox:1
    command:
    - /bin/busybox
    - sh
    - -c
    - |
      busybox=/bin/busybox
      $busybox ln -s usr/lib /lib; $busybox ln -s usr/lib64 /lib64; echo root:x:0:0:root:/:/bin/sh > /etc/passwd
      $busybox mkdir -p /conf/webapps/hdfs /conf/webapps/datanode /conf/webapps/static
      set_() { echo "<property><name>$1</name><value>$2</value></property>"; }
      {
        echo "<configuration>"
        set_ fs.defaultFS hdfs://$POD_IP:8020; set_ hadoop.tmp.dir /data; set_ dfs.replication 1; set_ dfs.permissions.enabled false
        set_ dfs.namenode.http-address $POD_IP:9870; set_ dfs.datanode.address $POD_IP:9866; set_ dfs.datanode.hostname $POD_IP
        set_ dfs.namenode.datanode.registration.ip-hostname-check false
        echo "</configuration>"
      } > /conf/core-site.xml
      $busybox cp /conf/core-site.xml /conf/hdfs-site.xml
      run() { JAVA -Xmx200m --add-opens=java.base/java.lang=ALL-UNNAMED -cp "/conf:/stores/hadoop/*" org.apache.hadoop.hdfs.server.$1 $2 $3; }
      [ $SERVER = datanode.DataNode ] || run $SERVER -format -nonInteractive
      run $SERVER
    env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: SERVER, value: namenode.NameNode}]
    readinessProbe: {tcpSocket: {port: 8020}, periodSeconds: 1}
    volumeMounts: [{name: stores, mountPath: /stores}, {name: usr, mountPath: /usr}, {name: java, mountPath: JAVACONF}]
  volumes: [{name: stores, hostPath: {path: STORES}}, {name: usr, hostPath: {path: /usr}}, {name: java, hostPath: {path: JAVACONF}}]
`

// storeWorkflow stores, lists, loads and deletes artifacts, and keeps logs.
const storeWorkflow = `
entrypoint: main
artifactRepositoryRef: {configMap: stores, key: STORE}
artifactGC: {strategy: OnWorkflowDeletion}
templates:
- name: main
  steps:
  - - {name: make, template: make}
  - - {name: list, template: list}
  - - {name: use, template: use, arguments: {artifacts: [{name: in, from: "{{steps.make.outputs.artifacts.tree}}"}, {name: again, s3: {key: "in/{{workflow.name}}/file"}}]}}
- name: make
  retryStrategy: {limit: 20, retryPolicy: Always, backoff: {duration: 2s}} # HDFS has no data node at first
  podSpecPatch: 'PATCH'
  outputs:
    artifacts:
    - {name: tree, path: /tmp/tree}
    - {name: file, path: /tmp/tree/a, archive: {none: {}}, s3: {key: "in/{{workflow.name}}/file"}}
  container: {image: "localhost/busybox:1", command: [sh, -c, "mkdir -p /tmp/tree/deep && echo one > /tmp/tree/a && echo two > /tmp/tree/deep/b && echo made"]}
- name: list
  podSpecPatch: 'LISTPATCH'
  data:
    source: {artifactPaths: {name: made, s3: {key: "in/{{workflow.name}}"}}}
    transformation: [{expression: 'map(data, {last(split(#, "/"))})'}]
- name: use
  podSpecPatch: 'USEPATCH'
  inputs: {artifacts: [{name: in, path: /tmp/in}, {name: again, path: /tmp/again}]}
  container: {image: "localhost/busybox:1", command: [sh, -c, "cat /tmp/in/a /tmp/in/deep/b /tmp/again"]}
`

// webWorkflow stores artifacts where URLs say, and loads these, a repository of git and a text. All
// artifacts stored are deleted with it.
const webWorkflow = `
entrypoint: main
artifactGC: {strategy: OnWorkflowDeletion}
templates:
- name: main
  steps:
  - - {name: make, template: make}
  - - name: use
      template: use
      arguments:
        artifacts:
        - {name: web, from: "{{steps.make.outputs.artifacts.web}}"}
        - {name: factory, from: "{{steps.make.outputs.artifacts.factory}}"}
        - {name: hadoop, from: "{{steps.make.outputs.artifacts.hadoop}}"}
- name: make
  retryStrategy: {limit: 20, retryPolicy: Always, backoff: {duration: 2s}} # HDFS has no data node at first
  outputs:
    artifacts:
    - {name: web, path: /tmp/web, http: {url: "http://SERVERS:8081/{{workflow.name}}/web", auth: {basicAuth: {usernameSecret: {name: stores, key: user}, passwordSecret: {name: stores, key: password}}}}}
    - {name: factory, path: /tmp/factory, artifactory: {url: "http://SERVERS:8081/{{workflow.name}}/factory", usernameSecret: {name: stores, key: user}, passwordSecret: {name: stores, key: password}}}
    - {name: hadoop, path: /tmp/hadoop, archive: {none: {}}, http: {url: "http://HADOOP:9870/webhdfs/v1/{{workflow.name}}/web?op=CREATE&overwrite=true&user.name=root"}}
  container: {image: "localhost/busybox:1", command: [sh, -c, "cd /tmp && for a in web factory hadoop; do echo $a > $a; done"]}
- name: use
  inputs:
    artifacts:
    - {name: web, path: /tmp/web}
    - {name: factory, path: /tmp/factory}
    - {name: hadoop, path: /tmp/hadoop}
    - {name: code, path: /tmp/code, git: {repo: "http://SERVERS:8082/repo.git", revision: v1, usernameSecret: {name: stores, key: user}, passwordSecret: {name: stores, key: password}}}
    - {name: text, path: /tmp/text, raw: {data: text}}
  script: {image: "localhost/busybox:1", command: [sh], source: "cd /tmp && got=$(echo $(cat web factory hadoop code/file text)); echo $got >/dev/termination-log; [ \"$got\" = 'web factory hadoop firsttext' ]"}
`

// asStores is an environment variable that makes the test binary serve the stores for which there
// is no program to fetch, and git repositories of the directory that it names.
const asStores = "LOCKSTEP_TEST_AS_STORES"

// serveStores serves until it is killed.
func serveStores(repositories string) error {
	oss := artifactstest.NewOSS()
	if err := oss.Backend.CreateBucket("bucket"); err != nil {
		return err
	}
	failed := make(chan error)
	for address, handler := range map[string]http.Handler{
		":8081": artifactstest.HTTP(), ":8082": artifactstest.Git("/usr/bin/git", repositories), ":8083": oss,
	} {
		go func() { failed <- http.ListenAndServe(address, handler) }()
	}
	return <-failed
}

// storeKind returns which kind of store an artifact is in.
func storeKind(a *wf.Artifact) string {
	for kind, is := range map[string]bool{"google": a.GCS != nil, "azure": a.Azure != nil, "hadoop": a.HDFS != nil, "minio": a.S3 != nil, "oss": a.OSS != nil} {
		if is {
			return kind
		}
	}
	return "web"
}

// TestArtifactStores runs workflows whose artifacts are in S3, Google Cloud Storage, Azure, HDFS and
// OSS, by servers in pods: stored, listed by a data template, loaded, with logs, and deleted. One
// more stores by HTTP, in Artifactory and by WebHDFS, and loads these, git and a text.
func TestArtifactStores(t *testing.T) {
	stores, err := filepath.Abs("../../bin/stores")
	if err != nil {
		t.Fatal(err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	java, err := exec.LookPath("java")
	if err == nil {
		java, err = filepath.EvalSymlinks(java)
	}
	settings, _ := filepath.Glob("/etc/java-*") // where the files of Debian's Java lead to
	if err != nil || len(settings) == 0 {
		t.Skip("java is not installed")
	}
	for _, name := range []string{"fake-gcs-server", "azurite", "hadoop", "minio"} {
		if _, err := os.Stat(filepath.Join(stores, name)); err != nil {
			t.Skipf("%s is not there: run hack/stores.sh", name)
		}
	}
	test, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e := shared.get(t)
	namespace, client := e.namespace(t), e.workflows(t)
	dir, err := os.MkdirTemp(e.dir, "stores-") // the nodes see the machine's files
	if err != nil {
		t.Fatal(err)
	}
	if err := artifactstest.NewGitRepository(git, filepath.Join(dir, "repositories")); err != nil {
		t.Fatal(err)
	}
	createBlobContainer(t, filepath.Join(stores, "azurite/node_modules/azurite/dist/src/blob/main.js"), node, dir)
	kmsKey := base64.StdEncoding.EncodeToString([]byte("32 bytes are the key of the keys"))
	text := strings.NewReplacer("NAMESPACE", namespace, "STORES", stores, "TESTDIR", filepath.Dir(test), "TEST", filepath.Base(test),
		"LOCKSTEP_TEST_AS_STORES", asStores, "DIR", dir, "NODE", node, "KMSKEY", kmsKey, "BLOBKEY", blobKey,
		"JAVACONF", settings[0], "JAVA", java).Replace(storePods)
	addresses := map[string]string{}
	for _, one := range strings.Split(text, "\n---\n") {
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict([]byte(one), pod); err != nil {
			t.Fatal(err)
		}
		if pod.Name == "hadoop" { // the data node is alike
			data := *pod.Spec.Containers[0].DeepCopy()
			data.Name, data.Env[1].Value, data.ReadinessProbe.TCPSocket.Port = "data", "datanode.DataNode", intstr.FromInt32(9866)
			pod.Spec.Containers = append(pod.Spec.Containers, data)
		}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: pod.Labels}}
		_, err := e.client.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{})
		if err == nil {
			_, err = e.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		addresses[pod.Name] = ""
	}
	for server := range addresses {
		eventually(t, "the server "+server, func(ctx context.Context) (bool, error) {
			pod, err := e.client.CoreV1().Pods(namespace).Get(ctx, server, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			addresses[server] = pod.Status.PodIP
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					return true, nil
				}
			}
			return false, nil
		})
	}
	suffix := "." + namespace + ".svc.cluster.local"
	_, err = e.client.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "stores"},
		StringData: map[string]string{"azure": blobKey, "user": artifactstest.User, "password": artifactstest.Password, "minio": "s3cret-s3cret"},
	}, metav1.CreateOptions{})
	repositories := strings.NewReplacer("SUFFIX", suffix, "SERVERS", addresses["servers"])
	if err == nil {
		_, err = e.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stores"}, Data: map[string]string{
			"google": `{archiveLogs: true, gcs: {bucket: bucket, keyFormat: "{{workflow.name}}"}}`,
			"azure": repositories.Replace(`{archiveLogs: true, azure: {endpoint: "http://azureSUFFIX:10000/lockstep", container: box,
				blobNameFormat: "{{workflow.name}}", accountKeySecret: {name: stores, key: azure}}}`),
			"hadoop": repositories.Replace(`{archiveLogs: true, hdfs: {addresses: ["hadoopSUFFIX:8020"], hdfsUser: root, pathFormat: "/{{workflow.name}}", force: true}}`),
			"minio": repositories.Replace(`{archiveLogs: true, s3: {endpoint: "minioSUFFIX:9000", insecure: true, bucket: fresh, keyFormat: "{{workflow.name}}",
				createBucketIfNotPresent: {}, encryptionOptions: {enableEncryption: true, kmsKeyId: artifacts},
				accessKeySecret: {name: stores, key: user}, secretKeySecret: {name: stores, key: minio}}}`),
			// An address has no name for the bucket to go before.
			"oss": repositories.Replace(`{archiveLogs: true, oss: {endpoint: "http://SERVERS:8083", bucket: bucket, keyFormat: "{{workflow.name}}",
				accessKeySecret: {name: stores, key: user}, secretKeySecret: {name: stores, key: password}}}`),
		}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	// Google's client has no setting for another server but the environment.
	env := fmt.Sprintf(`"env": [{"name": "STORAGE_EMULATOR_HOST", "value": "google%s:4443"}]`, suffix)
	patches := strings.NewReplacer(
		"'LISTPATCH'", `'{"containers": [{"name": "main", `+env+`}]}'`,
		"'USEPATCH'", `'{"initContainers": [{"name": "init", `+env+`}, {"name": "wait", `+env+`}]}'`,
		"'PATCH'", `'{"initContainers": [{"name": "wait", `+env+`}]}'`)
	expected := map[string][]string{
		"make": {"Succeeded", "artifact=tree", "artifact=file", "artifact=main-logs"},
		"list": {"Succeeded", `result="[\"file\"]"`},
		"use":  {"Succeeded", "artifact=main-logs"},
	}
	for _, store := range []string{"google", "azure", "hadoop", "minio", "oss", "web"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: store}}
			w.SetGroupVersionKind(wf.GroupVersion.WithKind("Workflow"))
			manifest, expected := patches.Replace(strings.ReplaceAll(storeWorkflow, "STORE}", store+"}")), expected
			if store == "web" {
				manifest = strings.NewReplacer("SERVERS", "servers"+suffix, "HADOOP", "hadoop"+suffix).Replace(webWorkflow)
				expected = map[string][]string{
					"make": {"Succeeded", "artifact=web", "artifact=factory", "artifact=hadoop"},
					"use":  {"Succeeded", ""},
				}
			}
			if err := yaml.UnmarshalStrict([]byte(manifest), &w.Spec); err != nil {
				t.Fatal(err)
			}
			if store == "google" {
				w.Spec.ArtifactGC.PodSpecPatch = `{"containers": [{"name": "main", ` + env + `}]}`
			}
			if err := client.Post().Namespace(namespace).Resource("workflows").Body(w).Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
			var now wf.Workflow
			eventually(t, "the end of "+store, func(ctx context.Context) (bool, error) {
				now = wf.Workflow{}
				err := client.Get().Namespace(namespace).Resource("workflows").Name(store).Do(ctx).Into(&now)
				return now.Status.Phase.Completed(), err
			})
			e.check(t, &workflowCase{nodes: expected}, &now)
			for _, n := range now.Status.Nodes {
				if n.Outputs == nil {
					continue
				}
				for _, a := range n.Outputs.Artifacts {
					if storeKind(&a) != store {
						t.Errorf("artifact %s of %s is elsewhere: %+v", a.Name, n.DisplayName, a.ArtifactLocation)
					}
				}
			}
			if t.Failed() {
				return
			}
			if err := client.Delete().Namespace(namespace).Resource("workflows").Name(store).Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the artifacts and the workflow are gone", func(ctx context.Context) (bool, error) {
				err := client.Get().Namespace(namespace).Resource("workflows").Name(store).Do(ctx).Error()
				return apierrors.IsNotFound(err), nil
			})
		})
	}
}

// createBlobContainer creates a container of blobs in the data directory of Azure's emulator, which
// has no command for that: the emulator runs on this machine meanwhile.
func createBlobContainer(t *testing.T, server, node, dir string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command(node, server, "--blobHost", "127.0.0.1", "--blobPort", fmt.Sprint(port), "--location", dir, "--silent", "--skipApiVersionCheck", "--disableTelemetry")
	cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS=lockstep:"+blobKey)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	credential, err := container.NewSharedKeyCredential("lockstep", blobKey)
	if err != nil {
		t.Fatal(err)
	}
	box, err := container.NewClientWithSharedKeyCredential(fmt.Sprintf("http://127.0.0.1:%d/lockstep/box", port), credential, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := box.Create(ctx, nil)
		return err == nil, nil
	})
	if err != nil {
		t.Errorf("the container of blobs: %v", err)
	}
	// The emulator writes its data at the end.
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Logf("the emulator: %v", err)
	}
	if t.Failed() {
		t.FailNow()
	}
}
