package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheMatrixOfRightsNamesTestsThatExist checks that each row of the tables in docs/security.md
// names a test of a user without the right, and that the named tests exist.
func TestTheMatrixOfRightsNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	// Each row of a table with a column "test" names a test, or a part of one, or says "the same".
	rows, tested := 0, false
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch last := strings.TrimSpace(cells[len(cells)-1]); {
		case !strings.HasPrefix(line, "|"):
			tested = false
		case last == "test":
			tested = true
		case tested && last != "---":
			rows++
			if last != "the same" && !strings.Contains(last, "`Test") && !strings.HasPrefix(last, "(") {
				t.Errorf("a row has no test: %s", line)
			}
		}
	}
	if rows < 30 {
		t.Errorf("the matrix has %d rows", rows)
	}
	missing := map[string]bool{}
	for _, name := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(page), -1) {
		missing["func "+name[1]+"(t *testing.T)"] = true
	}
	if len(missing) == 0 {
		t.Fatal("it names none")
	}
	err = filepath.WalkDir("../../internal", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for name := range missing {
			if strings.Contains(string(data), name) {
				delete(missing, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("there is no %s", name)
	}
}
