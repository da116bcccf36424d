package v1beta1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDisruptionBudget(t *testing.T) {
	for _, tc := range []struct {
		least, most  string
		wanted, have int
		allowed      int
	}{
		{"3", "", 8, 8, 5},
		{"3", "", 8, 2, 0},
		{"30%", "", 8, 8, 5}, // three of eight stay
		{"", "2", 8, 8, 2},
		{"", "2", 8, 7, 1},
		{"", "2", 8, 5, 0},
		{"", "25%", 8, 8, 2},
		{"", "99%", 1, 1, 1},
	} {
		b, ok := BudgetOf(&metav1.ObjectMeta{Annotations: map[string]string{
			JDBMinAvailableAnnotation: tc.least, JDBMaxUnavailableAnnotation: tc.most,
		}})
		if !ok || b.Allowed(tc.wanted, tc.have) != tc.allowed {
			t.Errorf("%+v: %+v, %t", tc, b, ok)
		}
	}
	for _, wrong := range [][2]string{{"0", ""}, {"-1", ""}, {"", "0%"}, {"100%", ""}, {"", "a"}, {"", "%"}, {"1", "1"}, {"99999999999", ""}} {
		if b, ok := BudgetOf(&metav1.ObjectMeta{Annotations: map[string]string{
			JDBMinAvailableAnnotation: wrong[0], JDBMaxUnavailableAnnotation: wrong[1],
		}}); ok || b != nil {
			t.Errorf("%v: %+v", wrong, b)
		}
	}
	if b, ok := BudgetOf(&metav1.ObjectMeta{}); !ok || b != nil {
		t.Errorf("no annotation: %+v, %t", b, ok)
	}
}
