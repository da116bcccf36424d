package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestARecordedLoadIsATrace records an audit log of a job with two pods, which is deleted, and of one
// whose pod ends by itself.
func TestARecordedLoadIsATrace(t *testing.T) {
	line := func(at, verb, resource, group, sub, name, node string) string {
		return `{"stage":"ResponseComplete","verb":"` + verb + `","user":{"username":"u"},"objectRef":{"resource":"` + resource + `","namespace":"n","name":"` + name +
			`","apiGroup":"` + group + `","subresource":"` + sub + `"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-01-02T03:04:` + at +
			`.000000Z","stageTimestamp":"2026-01-02T03:04:` + at + `.000000Z","annotations":{"audit.lockstep.dev/node":"` + node + `"}}` + "\n"
	}
	log := filepath.Join(t.TempDir(), "audit.log")
	text := line("01", "create", "jobs", "batch", "", "a", "") + line("02", "create", "pods", "", "", "a-x1", "") + line("03", "create", "pods", "", "", "a-x2", "") +
		line("04", "create", "pods", "", "binding", "a-x1", "n1") + line("05", "create", "pods", "", "binding", "a-x2", "n1") +
		line("15", "delete", "jobs", "batch", "", "a", "") + line("20", "create", "jobs", "batch", "", "empty", "") +
		line("21", "create", "jobs", "batch", "", "b", "") + line("22", "create", "pods", "", "", "b-x1", "n1") +
		strings.Replace(line("29", "patch", "pods", "", "status", "b-x1", ""), `lockstep.dev/node":""`, `lockstep.dev/ended":"Succeeded"`, 1)
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := call("record", log, "--system", "kubernetes")
	if err != nil || got != "arrival,pods,duration\n0,2,10\n20,1,7\n" {
		t.Errorf("%q, %v", got, err)
	}
	out := filepath.Join(t.TempDir(), "trace.csv")
	if _, err := call("record", log, "--system", "kubernetes", "--out", out); err != nil {
		t.Fatal(err)
	}
	if load, err := readTrace(out); err != nil || load.Pods() != 3 {
		t.Errorf("%+v, %v", load, err)
	}
	for want, args := range map[string][]string{
		"has no jobs":                             {"record", log},
		`unknown system "x"`:                      {"record", log, "--system", "x"},
		"no such file":                            {"record", "/nowhere"},
		"--trace: is required":                    {"run", "--scenario", "replay"},
		"--gang=both: want true or false":         {"run", "--scenario", "replay", "--trace", out, "--gang", "both"},
		"audit.log: line 1: is no trace in a kno": {"run", "--scenario", "replay", "--trace", log},
	} {
		if _, err := call(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
