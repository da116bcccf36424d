package threshold

import (
	"reflect"
	"strings"
	"testing"
)

type inner struct {
	P99        float64  `json:"p99"`
	Violations []string `json:"violations"`
}

type embedded struct {
	Ratio *float64 `json:"ratioToFloor"`
	Other float64  `json:"other,omitempty"`
}

type run struct {
	embedded
	Latency inner          `json:"latencyMs"`
	Writes  map[string]int `json:"writes"`
	Refused map[string]int `json:"refused,omitempty"`
	Gang    bool           `json:"gang"`
	Name    string         `json:"name"`
}

func TestThresholds(t *testing.T) {
	ratio := 1.3
	r := &run{embedded: embedded{Ratio: &ratio}, Latency: inner{P99: 250, Violations: []string{"a", "b"}}, Gang: true,
		Writes: map[string]int{"jobs.batch.volcano.sh/status": 7}}
	without := &run{}
	for _, c := range []struct {
		text string
		run  *run
		want string
	}{
		{"ratioToFloor>1.2", r, "ratioToFloor is 1.3: ratioToFloor>1.2"},
		{" ratioToFloor <= 1.2 ", r, ""},
		{"ratioToFloor>=1.3", r, "ratioToFloor is 1.3: ratioToFloor>=1.3"},
		{"ratioToFloor>1.2", without, "ratioToFloor>1.2 cannot be checked: the run has no ratioToFloor"},
		{"other>1", without, "other>1 cannot be checked: the run has no other"},
		{"latencyMs.p99>100", r, "latencyMs.p99 is 250: latencyMs.p99>100"},
		{"latencyMs.violations>0", r, "latencyMs.violations is 2: latencyMs.violations>0"},
		{"latencyMs.violations>0", without, ""},
		{"latencyMs.violations==0", without, "latencyMs.violations is 0: latencyMs.violations==0"},
		{"writes.jobs.batch.volcano.sh/status!=7", r, ""},
		{"writes.jobs.batch.volcano.sh/status<8", r, "writes.jobs.batch.volcano.sh/status is 7: writes.jobs.batch.volcano.sh/status<8"},
		{"writes.pods/binding>0", r, ""},
		{"writes.pods/binding==0", r, "writes.pods/binding is 0: writes.pods/binding==0"},
		{"refused>0", r, ""},
		{"gang==1", r, "gang is 1: gang==1"},
	} {
		threshold, err := Parse(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if err := threshold.Check(reflect.TypeFor[*run]()); err != nil {
			t.Error(err)
		}
		if got, err := threshold.Crossed(c.run); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
}

func TestBadThresholdsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"ratioToFloor": "want a figure", "ratioToFloor>": "want a figure", ">1": "want a figure", "a=1": "want a figure",
		"ratioToFloor>fast": `"fast" is no number`,
		"ratio>1":           `there is no figure "ratio"`, "latencyMs.p98>1": `there is no figure "latencyMs.p98"`,
		"latencyMs>1": `"latencyMs" is no number`, "name==1": `"name" is no number`, "ratioToFloor.x>1": `there is no figure "ratioToFloor.x"`,
	} {
		threshold, err := Parse(text)
		if err == nil {
			err = threshold.Check(reflect.TypeFor[*run]())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
