package manager

import (
	"testing"

	"k8s.io/client-go/rest"
)

func TestTheLabelsOfTheArchiveAreCheckedAtTheStart(t *testing.T) {
	if _, err := New(Config{REST: &rest.Config{Host: "http://none"}, ArchiveLabels: "team in ("}); err == nil {
		t.Error("a selector that cannot be parsed is accepted")
	}
}
