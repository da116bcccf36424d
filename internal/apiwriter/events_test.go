package apiwriter

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
)

func TestALongMessageOfAnEventIsText(t *testing.T) {
	w, err := New(Config{REST: &rest.Config{Host: "http://none"}, Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	w.Event(&corev1.Pod{}, corev1.EventTypeNormal, "Reason", "xy"+strings.Repeat("日", eventMessageMax))
	message := w.events.recent.Front().Value.(*eventEntry).event.Message
	if len(message) > eventMessageMax || len(message) < eventMessageMax-utf8.UTFMax || !utf8.ValidString(message) {
		t.Errorf("%d bytes, which end with %q", len(message), message[len(message)-5:])
	}
}
