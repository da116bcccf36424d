package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

func TestWhatAKubeletReserves(t *testing.T) {
	for name, c := range map[string]struct {
		config  string
		want    reservation.Reserve
		refusal string
		wrong   string
	}{
		"nothing":          {config: "kind: KubeletConfiguration\n"},
		"CPUs by number":   {config: "reservedSystemCPUs: 0-1\nkubeReserved: {cpu: '8'}\n", want: reservation.Reserve{Named: cpuset.MustParse("0-1")}},
		"numbers of CPUs":  {config: "kubeReserved: {cpu: 500m, memory: 1Gi}\nsystemReserved: {cpu: '1'}\n", want: reservation.Reserve{Count: 2}},
		"a part of a CPU":  {config: "systemReserved: {cpu: 100m}\n", want: reservation.Reserve{Count: 1}},
		"no CPU list":      {config: "reservedSystemCPUs: a\n", wrong: "reservedSystemCPUs"},
		"no quantity":      {config: "kubeReserved: {cpu: many}\n", wrong: "kubeReserved.cpu"},
		"topology manager": {config: "topologyManagerPolicy: single-numa-node\n", refusal: "topologyManagerPolicy"},
		"best effort":      {config: "topologyManagerPolicy: best-effort\ncpuManagerPolicyOptions: {full-pcpus-only: 'false'}\n"},
		"whole cores only": {config: "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n", refusal: "full-pcpus-only"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), ConfigFile)
			if err := os.WriteFile(path, []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := ReadConfig(path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := config.Reserve()
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("the error is %v, want one about %s", err, c.wrong)
				}
				return
			}
			if err != nil || !got.Equal(c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
			if why := config.Refusal(); !strings.Contains(why, c.refusal) || (why == "") != (c.refusal == "") {
				t.Errorf("it refuses pods because of %q, want %q", why, c.refusal)
			}
		})
	}
}

func TestWhatANodeReserves(t *testing.T) {
	for value, want := range map[string]reservation.Reserve{
		"":                       {},
		`{"reservedCPUs":"0-3"}`: {Named: cpuset.MustParse("0-3")},
		`{"resources":{"cpu":"1500m","memory":"1Gi"}}`:                                  {Count: 2},
		`{"resources":{"cpu":2}}`:                                                       {Count: 2},
		`{"reservedCPUs":"5","resources":{"cpu":"8"},"applyPolicy":"ReservedCPUsOnly"}`: {Named: cpuset.MustParse("5")},
	} {
		if got, err := ReserveOfNode(value); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %+v, %v, want %+v", value, got, err, want)
		}
	}
	for _, wrong := range []string{"{", `{"reservedCPUs":"x"}`, `{"resources":{"cpu":"x"}}`} {
		if got, err := ReserveOfNode(wrong); err == nil {
			t.Errorf("%s gives %+v", wrong, got)
		}
	}
}
