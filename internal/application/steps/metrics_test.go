package steps

import (
	"strings"
	"testing"
	"time"
)

func params(condition, duration, failDuration string) map[string]any {
	return map[string]any{"query": `rate(a{b="c"}[1m])`, "metricEndpoint": "http://p:9090/", "condition": condition, "duration": duration, "failDuration": failDuration}
}

func TestConditionsOfMetrics(t *testing.T) {
	for condition, met := range map[string][3]bool{ // of 1, 2 and 3
		">=2": {false, true, true}, "<= 2": {true, true, false}, " > 2 ": {false, false, true}, "<2": {true, false, false}, "==2.0": {false, true, false}, "!=2": {true, false, true},
	} {
		c, err := newMetricCheck(params(condition, "5m", "2m"))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range met {
			if got := c.met(float64(i + 1)); got != want {
				t.Errorf("%d %s: %v", i+1, condition, got)
			}
		}
		if want := "http://p:9090/api/v1/query?query=rate%28a%7Bb%3D%22c%22%7D%5B1m%5D%29"; c.request.URL != want {
			t.Errorf("the address is %s, want %s", c.request.URL, want)
		}
	}
	for want, p := range map[string]map[string]any{
		`condition "2" is not`: params("2", "5m", "2m"), `"x" is not a number`: params(">x", "5m", "2m"), `"NaN" is not a number`: params(">NaN", "5m", "2m"),
		`condition ">1 && <3" is not`: params(">1 && <3", "5m", "2m"), `duration: "5" is not`: params(">2", "5", "2m"), `failDuration: "-2m" is not`: params(">2", "5m", "-2m"),
	} {
		if _, err := newMetricCheck(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

// TestAConditionHasToBeMetForAWhile checks that the times begin again whenever it is met or missed anew.
func TestAConditionHasToBeMetForAWhile(t *testing.T) {
	c, err := newMetricCheck(params(">=2", "5m", "2m"))
	if err != nil {
		t.Fatal(err)
	}
	var was *measured
	begin := time.Unix(0, 0)
	for _, at := range []struct {
		minute         int
		v              float64
		result, failed bool
		left           time.Duration
	}{
		{0, 3, false, false, 5 * time.Minute}, {4, 2, false, false, time.Minute}, {5, 1, false, false, 2 * time.Minute}, {6, 1, false, false, time.Minute},
		{7, 2, false, false, 5 * time.Minute}, {12, 3, true, false, 0}, {13, 0, false, false, 2 * time.Minute}, {15, 1, false, true, 0},
	} {
		returns, is, left := c.judge(at.v, was, begin.Add(time.Duration(at.minute)*time.Minute))
		if returns["result"] != at.result || returns["failed"] != at.failed || left != at.left {
			t.Errorf("after %d minutes: %v, %s left", at.minute, returns, left)
		}
		was = &is
	}
}

func TestResultsOfQueries(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1.5,"0.25"]}]}}`: "",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"0.25"]}}`:                           "",
		`{"data":{"resultType":"vector","result":[]}}`:                                                      "the query has 0 results",
		`{"data":{"resultType":"vector","result":[{"value":[1,"1"]},{"value":[1,"2"]}]}}`:                   "the query has 2 results",
		`{"data":{"resultType":"string","result":[1,"text"]}}`:                                              `is no number: "text"`,
		`{"data":{"resultType":"matrix","result":[{"values":[[1,"1"]]}]}}`:                                  "no number, but a matrix",
		`<html>`: "not answered as by Prometheus",
	} {
		v, err := resultOf(200, body)
		if want == "" && (err != nil || v != 0.25) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", body, v, err)
		}
	}
	if _, err := resultOf(400, `{"error":"bad"}`); err == nil || !strings.Contains(err.Error(), "400 Bad Request") {
		t.Errorf("a refusal: %v", err)
	}
}
