package stores

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// cluster is an HDFS of one name node and one data node.
type cluster struct {
	address string // of the name node
	web     string // of its HTTP server
}

// hdfs starts an HDFS with further settings, and waits until files can be written.
func hdfs(t *testing.T, java []string, settings map[string]string) cluster {
	t.Helper()
	jars, runtime := fetched(t, "hadoop"), program(t, "java")
	dir, p := t.TempDir(), ports(t, 5)
	local := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", p[i]) }
	all := map[string]string{
		"fs.defaultFS": "hdfs://" + local(0), "hadoop.tmp.dir": dir + "/tmp", "dfs.replication": "1", "dfs.permissions.enabled": "false",
		"dfs.namenode.http-address": local(1), "dfs.datanode.address": local(2), "dfs.datanode.http.address": local(3),
		"dfs.datanode.ipc.address": local(4), "dfs.datanode.hostname": "127.0.0.1", "dfs.blocksize": "8388608",
		"dfs.namenode.datanode.registration.ip-hostname-check": "false",
	}
	maps.Copy(all, settings)
	var xml strings.Builder
	xml.WriteString("<configuration>\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&xml, "<property><name>%s</name><value>%s</value></property>\n", name, all[name])
	}
	xml.WriteString("</configuration>\n")
	file(t, xml.String(), dir, "conf", "core-site.xml")
	file(t, xml.String(), dir, "conf", "hdfs-site.xml")
	for _, app := range []string{"hdfs", "datanode", "static"} { // pages that only the distribution has
		if err := os.MkdirAll(filepath.Join(dir, "conf", "webapps", app), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command := append(slices.Clone(java), "-Xmx256m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", dir+"/conf:"+jars+"/*")
	const server = "org.apache.hadoop.hdfs.server."
	if out, err := exec.Command(runtime, append(slices.Clone(command), server+"namenode.NameNode", "-format", "-nonInteractive")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	start(t, p[1], runtime, append(slices.Clone(command), server+"namenode.NameNode")...)
	start(t, p[4], runtime, append(slices.Clone(command), server+"datanode.DataNode")...)
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		r, err := http.Get("http://" + local(1) + "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
		if err != nil {
			return false, nil
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		return strings.Contains(string(text), `"NumLiveDataNodes" : 1,`), err
	})
	if err != nil {
		t.Fatalf("waiting for the data node: %v", err)
	}
	return cluster{address: local(0), web: "http://" + local(1)}
}

func TestHDFS(t *testing.T) {
	c := hdfs(t, nil, nil)
	roundTrips(t, func(key string) execapi.Location {
		return execapi.Location{HDFS: &execapi.HDFS{Addresses: []string{c.address}, User: "me", Path: "/" + key}}
	})
	t.Run("a file is overwritten by force only", func(t *testing.T) {
		made := file(t, "one", t.TempDir(), "made")
		at := &execapi.HDFS{Addresses: []string{c.address}, User: "me", Path: "/forced/out"}
		l := execapi.Location{HDFS: at}
		if r := save(t, made, execapi.ArchiveNone, l); r.Failed {
			t.Fatal(r.Message)
		}
		if r := save(t, made, execapi.ArchiveNone, l); !r.Failed || !strings.Contains(r.Message, "force") {
			t.Errorf("%+v", r)
		}
		at.Force = true
		if r := save(t, file(t, "two", t.TempDir(), "made"), execapi.ArchiveNone, l); r.Failed {
			t.Fatal(r.Message)
		}
		to := filepath.Join(t.TempDir(), "in")
		if err := load(t, l, execapi.ArchiveNone, to); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(to); string(text) != "two" {
			t.Errorf("%q, %v", text, err)
		}
	})
	t.Run("by HTTP", func(t *testing.T) {
		// One URL serves for all: what was created is opened and deleted.
		l := execapi.Location{HTTP: &execapi.HTTP{URL: c.web + "/webhdfs/v1/web/out.tgz?op=CREATE&overwrite=true&user.name=me"}}
		made := t.TempDir()
		file(t, "one", made, "tree", "a")
		if r := save(t, filepath.Join(made, "tree"), execapi.ArchiveTar, l); r.Failed {
			t.Fatal(r.Message)
		}
		to := filepath.Join(t.TempDir(), "in")
		if err := load(t, l, execapi.ArchiveTar, to); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(to, "a")); string(text) != "one" {
			t.Errorf("%q, %v", text, err)
		}
		remove(t, l)
		if err := load(t, l, execapi.ArchiveTar, to); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("deleted, and still there: %v", err)
		}
	})
}

// TestHDFSWithKerberos uses name nodes that only take tickets, with a keytab, and data nodes that
// want to know who asks, or encrypt all data.
func TestHDFSWithKerberos(t *testing.T) {
	for _, protection := range []string{"authentication", "privacy"} {
		t.Run(protection, func(t *testing.T) { withKerberos(t, protection) })
	}
}

func withKerberos(t *testing.T, protection string) {
	jars, runtime := fetched(t, "hadoop"), program(t, "java")
	dir, port := t.TempDir(), ports(t, 1)[0]
	properties := file(t, fmt.Sprintf("org.name=EXAMPLE\norg.domain=COM\nkdc.bind.address=127.0.0.1\nkdc.port=%d\ndebug=false\ninstance=DefaultKrbServer\nmax.ticket.lifetime=86400000\nmax.renewable.lifetime=604800000\ntransport=TCP\n", port), dir, "kdc.properties")
	keys := filepath.Join(dir, "keytab")
	start(t, port, runtime, "-Xmx128m", "-cp", jars+"/*", "org.apache.hadoop.minikdc.MiniKdc", dir, properties, keys, "hdfs/localhost", "HTTP/localhost", "me")
	settings := file(t, fmt.Sprintf("[libdefaults]\ndefault_realm = EXAMPLE.COM\nudp_preference_limit = 1\n[realms]\nEXAMPLE.COM = {\n  kdc = 127.0.0.1:%d\n}\n", port), dir, "krb5.conf")
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		info, err := os.Stat(keys)
		return err == nil && info.Size() > 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const principal = "hdfs/localhost@EXAMPLE.COM"
	c := hdfs(t, []string{"-Djava.security.krb5.conf=" + settings}, map[string]string{
		"hadoop.security.authentication": "kerberos", "hadoop.security.authorization": "true", "dfs.block.access.token.enable": "true",
		"dfs.namenode.kerberos.principal": principal, "dfs.namenode.keytab.file": keys, "dfs.datanode.kerberos.principal": principal,
		"dfs.datanode.keytab.file": keys, "dfs.web.authentication.kerberos.principal": "HTTP/localhost@EXAMPLE.COM",
		"dfs.web.authentication.kerberos.keytab": keys, "dfs.data.transfer.protection": protection, "ignore.secure.ports.for.testing": "true",
		"dfs.namenode.kerberos.principal.pattern": "*", "dfs.http.policy": "HTTP_ONLY", "dfs.encrypt.data.transfer.cipher.suites": "AES/CTR/NoPadding",
	})
	roundTrips(t, func(key string) execapi.Location {
		return execapi.Location{HDFS: &execapi.HDFS{Addresses: []string{c.address}, Path: "/" + key, Protection: protection, Kerberos: &execapi.Kerberos{
			Keytab: keys, Config: settings, User: "me", Realm: "EXAMPLE.COM", Service: "hdfs/localhost",
		}}}
	})
	t.Run("without a ticket", func(t *testing.T) {
		l := execapi.Location{HDFS: &execapi.HDFS{Addresses: []string{c.address}, Path: "/x", User: "me"}}
		if r := save(t, file(t, "x", t.TempDir(), "made"), execapi.ArchiveNone, l); !r.Failed || !strings.Contains(r.Message, "hdfs://"+c.address+"/x") {
			t.Errorf("%+v", r)
		}
	})
}
