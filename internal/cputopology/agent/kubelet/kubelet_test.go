package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

func TestParse(t *testing.T) {
	type pins = map[string]map[string]cpuset.Set
	for name, c := range map[string]struct {
		file string
		want desired.Kubelet
		bad  bool
	}{
		"no static policy": {file: `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`},
		"static, nothing pinned": {file: `{"policyName":"static","defaultCpuSet":"0-7","checksum":14413152}`,
			want: desired.Kubelet{Static: true, Pins: pins{}}},
		"containers": {file: `{"policyName":"static","defaultCpuSet":"0-1,6-7","entries":{"u":{"a":"2-3","b":"4-5"}},"checksum":1}`,
			want: desired.Kubelet{Static: true, Pins: pins{"u": {"a": cpuset.MustParse("2-3"), "b": cpuset.MustParse("4-5")}}}},
		"a whole pod": {file: `{"policyName":"static","defaultCpuSet":"0-1","podEntries":{"u":{"cpuSet":"2-5"}},"checksum":1}`,
			want: desired.Kubelet{Static: true, Pins: pins{"u": {desired.WholePod: cpuset.MustParse("2-5")}}}},
		"not by container": {file: `{"policyName":"static","entries":{"u":"2-3"}}`, bad: true},
		"no CPU list":      {file: `{"policyName":"static","entries":{"u":{"a":"x"}}}`, bad: true},
		"half a file":      {file: `{"policyName":`, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), StateFile)
			if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := Read(path)
			if (err != nil) != c.bad {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, err := Read(filepath.Join(t.TempDir(), StateFile)); err != nil || got.Static {
		t.Errorf("no file: %+v, %v", got, err)
	}
}

// FuzzParse feeds arbitrary checkpoints: they must be rejected, or give pins within the limits of a
// CPU set.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"0,3","entries":{"uid":{"c":"1-2"}},"checksum":1}`))
	f.Add([]byte(`{"policyName":"static","entries":{},"podEntries":{"uid":{"cpuSet":"1-2"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := Parse(data)
		if err != nil {
			return
		}
		if again, err := Parse(data); err != nil || !cmp.Equal(k, again, cmp.Comparer(func(a, b cpuset.Set) bool { return a.Equal(b) })) {
			t.Fatalf("read twice, %q gives %+v and %+v, %v", data, k, again, err)
		}
	})
}
