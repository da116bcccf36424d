package v1beta1

import "testing"

func TestZonesOf(t *testing.T) {
	for sentence, tc := range map[string]struct {
		annotations map[string]string
		want        string
		wrong       bool
	}{
		"a pod without annotations":              {},
		"all zones":                              {map[string]string{RevocableZoneAnnotation: "*"}, "*", false},
		"one zone":                               {map[string]string{RevocableZoneAnnotation: "a"}, "a", false},
		"zones are sorted":                       {map[string]string{RevocableZoneAnnotation: "b, a,b"}, "a,b", false},
		"all zones, among others":                {map[string]string{RevocableZoneAnnotation: "b,*"}, "*", false},
		"no zone":                                {map[string]string{RevocableZoneAnnotation: ""}, "", false},
		"no zone for a preemptable pod":          {map[string]string{RevocableZoneAnnotation: "", PreemptableAnnotation: "true"}, "", false},
		"a preemptable pod":                      {map[string]string{PreemptableAnnotation: "true"}, "*", false},
		"a pod that is not preemptable":          {map[string]string{PreemptableAnnotation: "false"}, "", false},
		"a preemptable pod with a zone":          {map[string]string{PreemptableAnnotation: "true", RevocableZoneAnnotation: "a"}, "a", false},
		"a name that is none":                    {map[string]string{RevocableZoneAnnotation: "a b"}, "", true},
		"an empty name among others":             {map[string]string{RevocableZoneAnnotation: "a,,b"}, "a,b", true},
		"a preemptable pod with no name of zone": {map[string]string{PreemptableAnnotation: "true", RevocableZoneAnnotation: "/"}, "", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, ok := ZonesOf(tc.annotations)
			if got != tc.want || ok == tc.wrong {
				t.Errorf("%q, %v; want %q, %v", got, ok, tc.want, !tc.wrong)
			}
			again, ok := ZonesOf(WithZones(nil, tc.annotations))
			if again != got || !ok {
				t.Errorf("the zones of %q are %q", got, again)
			}
		})
	}
}
