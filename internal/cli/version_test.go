package cli

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli/command"
)

func TestVersionIsReadByPeopleAndPrograms(t *testing.T) {
	var out, errOut strings.Builder
	if code := Run([]string{"version"}, strings.NewReader(""), &out, &errOut); code != command.ExitOK || out.String() != "lockstep dev ("+runtime.Version()+", "+runtime.GOOS+"/"+runtime.GOARCH+")\n" {
		t.Errorf("exit code %d: %s%s", code, out.String(), errOut.String())
	}
	out.Reset()
	var report map[string]any
	if code := Run([]string{"version", "-o", "json"}, strings.NewReader(""), &out, &errOut); code != command.ExitOK {
		t.Fatalf("exit code %d: %s", code, errOut.String())
	}
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil || report["version"] != "dev" || report["go"] != runtime.Version() || report["schemaVersion"] != "v1" {
		t.Errorf("%v: %s", err, out.String())
	}
}
