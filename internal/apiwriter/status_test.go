package apiwriter

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheVersionOfAStatus(t *testing.T) {
	for name, c := range map[string]struct{ written, obj, want string }{
		"the object's":                              {"", "2", "2"},
		"that of the last write, if it is later":    {"10", "9", "10"},
		"the object's, if it is later":              {"9", "10", "10"},
		"none, if the object has none":              {"", "", ""},
		"none, if the object has none: not our own": {"10", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: c.obj}}
			e, x := &statusEntry{uid: "u", version: c.written, latest: obj}, &write{}
			if e.begin(x); x.version != c.want {
				t.Errorf("%q, want %q", x.version, c.want)
			}
		})
	}
}
