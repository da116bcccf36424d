package kubeclient

import (
	"testing"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/malformed"
)

func TestObjectsThatDoNotDecodeAreMarkedAndTheOthersWhole(t *testing.T) {
	decode := Decoder(batch.GroupVersion, scheme.Scheme)
	job := func(name, spec string) string {
		return `{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":{"namespace":"a","name":"` + name +
			`","uid":"u","resourceVersion":"7","managedFields":[{"manager":"kubectl"}]},"spec":` + spec + `}`
	}
	bad := job("bad", `{"queue":"q","runningEstimate":"abc"}`)
	o, err := decode("application/json", []byte(bad))
	if err != nil {
		t.Fatal(err)
	}
	j := o.(*batch.Job)
	if why := malformed.Of(j); why == nil || why.Error() != `Job a/bad is malformed: spec.runningEstimate: "abc" is no duration such as "90s"` {
		t.Errorf("marked with %v", why)
	}
	if j.UID != "u" || j.ResourceVersion != "7" || j.Spec.Queue != "" || j.ManagedFields != nil {
		t.Errorf("got %+v, want its metadata only", j)
	}
	o, err = decode("application/json", []byte(`{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"JobList","metadata":{"resourceVersion":"9","continue":"c"},"items":[`+
		job("one", `{"queue":"q"}`)+","+bad+","+job("two", `{"queue":"r"}`)+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	list := o.(*batch.JobList)
	if list.ResourceVersion != "9" || list.Continue != "c" || len(list.Items) != 3 {
		t.Fatalf("got %+v", list)
	}
	for i, want := range []string{"q", "", "r"} {
		if j := &list.Items[i]; j.Spec.Queue != want || (malformed.Of(j) != nil) != (i == 1) {
			t.Errorf("item %d: %+v", i, j)
		}
	}
	for _, nothing := range []string{``, `[]`, `{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","spec":1}`,
		`{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":5,"spec":1}`} {
		if o, err := decode("application/json", []byte(nothing)); err == nil {
			t.Errorf("%s: %v and no error", nothing, o)
		}
	}
}

func BenchmarkDecodeJob(b *testing.B) {
	data := []byte(`{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":{"namespace":"a","name":"n","uid":"u","resourceVersion":"7"},` +
		`"spec":{"queue":"q","minAvailable":2,"tasks":[{"name":"main","replicas":2,"template":{"spec":{"containers":[{"name":"main","image":"busybox",` +
		`"resources":{"requests":{"cpu":"500m","memory":"1Gi"}}}]}}}]},"status":{"state":{"phase":"Running"},"running":2}}`)
	c := codecsOf(scheme.Scheme)
	for name, c := range map[string]codecs{"strict": c, "tolerant": lenientCodecs(codecsOf(scheme.Scheme), scheme.Scheme)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for _, info := range c.media {
				if info.MediaType != jsonType {
					continue
				}
				for b.Loop() {
					if _, _, err := info.Serializer.Decode(data, nil, nil); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
