package localtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lockstep.dev/lockstep/internal/localcluster"
)

func TestTheRestOfTheLogIsReadTheNextTime(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	line := func(user, name string) string {
		return fmt.Sprintf(`{"stage":"ResponseComplete","verb":"create","user":{"username":%q},"objectRef":{"resource":"pods","name":%q},"responseStatus":{"code":201}}`+"\n", user, name)
	}
	written := ""
	var c calls
	shows := func(more string, want ...string) {
		t.Helper()
		written += more
		if err := os.WriteFile(log, []byte(written), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := c.upTo(log)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, call := range all {
			got = append(got, call.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the calls are of %v, want %v", got, want)
		}
		clear(all) // the caller's own
	}
	ours := localcluster.ManagerUser
	half := line(ours, "b")
	shows(line(ours, "a")+line("somebody", "x")+half[:40], "a")
	shows("", "a")
	shows(half[40:]+line(ours, "c"), "a", "b", "c")
}
