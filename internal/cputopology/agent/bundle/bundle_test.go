package bundle

import (
	"os"
	"path/filepath"
	"testing"
)

func TestName(t *testing.T) {
	dir := t.TempDir()
	write := func(id, content string) {
		if err := os.MkdirAll(filepath.Join(dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, id, "config.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0123456789abcdef00", `{"process":{"env":["A=b"]},"annotations":{"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.container-name":"main"}}`)
	write("0123456789abcdef01", `{"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}`)
	write("0123456789abcdef02", `{"annotations":{"io.kubernetes.container.name":"crio"}}`)
	write("0123456789abcdef03", `{"annotations":`)
	names := Names{filepath.Join(dir, "none", "%s", "config.json"), filepath.Join(dir, "%s", "config.json")}
	for id, want := range map[string]string{
		"0123456789abcdef00": "main", "0123456789abcdef01": "", "0123456789abcdef02": "crio", "0123456789abcdef03": "",
		"0123456789abcdef04": "", "..": "", "../0123456789abcdef00": "", "": "",
	} {
		if got, found := names.Name(id); got != want || found != (want != "") {
			t.Errorf("%q is %q, %v; want %q", id, got, found, want)
		}
	}
}
