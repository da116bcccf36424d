package draw

import (
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

func TestPageShowsEveryCPUAndEscapesNames(t *testing.T) {
	for _, m := range machines.All() {
		l, err := allocate.NewLayout(m.MustTopology(), cpuset.Of(m.MustTopology().CPUs[0].ID))
		if err != nil {
			t.Fatal(err)
		}
		n := allocate.NewNode(`<b>node</b>`, l)
		free := n.Idle().IDs()
		mine := cpuset.Of(free[0], free[len(free)-1])
		if err := n.Restore(&allocate.Allocation{Key: "uid", Containers: []allocate.ContainerCPUs{{Name: "c", CPUs: mine, Held: mine, Share: 1}}}); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := Page(&out, Of(n, map[string]string{"uid": `ns/<script>alert("x")</script>`})); err != nil {
			t.Fatal(err)
		}
		html := out.String()
		if got, want := strings.Count(html, `title="CPU `), len(m.MustTopology().CPUs); got != want {
			t.Errorf("%s: %d CPUs drawn, want %d", m.Name, got, want)
		}
		if got := strings.Count(html, `class="cpu held" data-p="0"`); got != 2 {
			t.Errorf("%s: %d CPUs drawn as held, want 2", m.Name, got)
		}
		for _, bad := range []string{"<script>alert", "<b>node", "ZgotmplZ", "http://", "https://"} {
			if strings.Contains(html, bad) {
				t.Errorf("%s: the page has %q", m.Name, bad)
			}
		}
		var text strings.Builder
		if err := Holders(&text, Of(n, nil)); err != nil || !strings.Contains(text.String(), "uid") {
			t.Errorf("%s: %v\n%s", m.Name, err, text.String())
		}
	}
}
