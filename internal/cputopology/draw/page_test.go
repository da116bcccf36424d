package draw

import (
	"fmt"
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
		if err := n.Restore(&allocate.Allocation{Key: "uid", Containers: []allocate.ContainerCPUs{{Name: "c", CPUs: mine, Held: mine.Union(cpuset.Of(free[1])), Share: 1}}}); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		view := Of(n, nil)
		if !view.Idle().Equal(n.Idle()) {
			t.Errorf("%s: idle CPUs: %s, want %s", m.Name, view.Idle(), n.Idle())
		}
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
		if got, want := strings.Count(html, `class="cpu idle"`), n.IdleCPUs(); got != want {
			t.Errorf("%s: %d CPUs drawn as idle, want %d", m.Name, got, want)
		}
		if figure := fmt.Sprintf("<b>%d</b><span>idle CPUs</span>", n.IdleCPUs()); !strings.Contains(html, figure) {
			t.Errorf("%s: the page lacks %s", m.Name, figure)
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
