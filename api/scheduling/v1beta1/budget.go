package v1beta1

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DisruptionBudget limits how many pods of a gang are evicted for others, as far as there is another
// way. One of the limits is set.
type DisruptionBudget struct {
	// Min is how many pods stay, and Max how many may be missing. Percent means that they are parts of
	// a hundred of the pods that the gang wants.
	Min, Max int
	Percent  bool
}

// BudgetOf returns the budget in the annotations JDBMinAvailableAnnotation and
// JDBMaxUnavailableAnnotation of an object, or nil if it has neither. It returns false if they are
// not a positive number or a percentage from 1% to 99%, or if both are set.
func BudgetOf(o metav1.Object) (b *DisruptionBudget, ok bool) {
	least, most := o.GetAnnotations()[JDBMinAvailableAnnotation], o.GetAnnotations()[JDBMaxUnavailableAnnotation]
	switch {
	case least == "" && most == "":
		return nil, true
	case least != "" && most != "":
		return nil, false
	}
	number, percent := strings.CutSuffix(least+most, "%")
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || n == 0 || percent && n > 99 {
		return nil, false
	}
	b = &DisruptionBudget{Percent: percent}
	if least != "" {
		b.Min = int(n)
	} else {
		b.Max = int(n)
	}
	return b, true
}

// Allowed returns how many pods may be evicted of a gang that wants a number of pods and has a number
// of them.
func (b *DisruptionBudget) Allowed(wanted, have int) int {
	part := func(n int) int {
		if b.Percent {
			return (n*wanted + 99) / 100
		}
		return n
	}
	if b.Min > 0 {
		return max(0, have-part(b.Min))
	}
	return max(0, part(b.Max)-max(0, wanted-have))
}
