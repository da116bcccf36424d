package v1beta1

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// RevocableZoneLabel on a node is the revocable zone that the node belongs to.
const RevocableZoneLabel = RevocableZoneAnnotation

// AllZones stands for all revocable zones in RevocableZoneAnnotation.
const AllZones = "*"

// ZonesOf returns the revocable zones that annotations allow: AllZones, or names separated by commas,
// sorted; it is empty for pods that may be in none. Without RevocableZoneAnnotation, pods that say
// that they may be evicted may be in all zones. ok is false if the annotation has a part that is no
// name of a zone; such a part allows nothing.
func ZonesOf(annotations map[string]string) (zones string, ok bool) {
	value, set := annotations[RevocableZoneAnnotation]
	if !set {
		if may, err := strconv.ParseBool(annotations[PreemptableAnnotation]); err == nil && may {
			return AllZones, true
		}
		return "", true
	}
	if value == "" || value == AllZones {
		return value, true
	}
	var names []string
	ok = true
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if name == AllZones {
			return AllZones, ok
		}
		if name == "" || len(validation.IsValidLabelValue(name)) > 0 {
			ok = false
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ","), ok
}

// WithZones returns a map with the annotation of revocable zones of annotations added, as ZonesOf
// returns it. The map that is passed is not modified.
func WithZones(to, annotations map[string]string) map[string]string {
	zones, _ := ZonesOf(annotations)
	if zones == "" {
		return to
	}
	out := make(map[string]string, len(to)+1)
	for key, value := range to {
		out[key] = value
	}
	out[RevocableZoneAnnotation] = zones
	return out
}
