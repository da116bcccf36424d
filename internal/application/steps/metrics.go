package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/application/external"
	"lockstep.dev/lockstep/internal/application/render"
)

// metricCheck is a check of the result of a Prometheus query.
type metricCheck struct {
	request *external.Request
	// operator and limit are the condition that the result has to meet.
	operator string
	limit    float64
	text     string
	// duration is how long the condition has to be met, and failDuration how long it may be missed.
	duration, failDuration time.Duration
}

// measured says since when the condition of a metricCheck has been met, or missed. It is in memory
// only: after a restart of the manager the times begin again.
type measured struct {
	met   bool
	since time.Time
}

var conditionForm = regexp.MustCompile(`^\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*$`)

// newMetricCheck reads the parameters of a check.
func newMetricCheck(params map[string]any) (*metricCheck, error) {
	c := &metricCheck{text: strings.TrimSpace(text(params, "condition"))}
	parts := conditionForm.FindStringSubmatch(c.text)
	if parts == nil {
		return nil, fmt.Errorf("condition %q is not an operator and a number, such as >=0.99", c.text)
	}
	var err error
	c.operator = parts[1]
	if c.limit, err = strconv.ParseFloat(parts[2], 64); err != nil || math.IsNaN(c.limit) {
		return nil, fmt.Errorf("condition %q: %q is not a number", c.text, parts[2])
	}
	for name, into := range map[string]*time.Duration{"duration": &c.duration, "failDuration": &c.failDuration} {
		if *into, err = time.ParseDuration(text(params, name)); err != nil || *into < 0 {
			return nil, fmt.Errorf("%s: %q is not a duration", name, text(params, name))
		}
	}
	c.request, err = external.NewRequest(map[string]any{"method": http.MethodGet,
		"url": strings.TrimSuffix(text(params, "metricEndpoint"), "/") + "/api/v1/query?query=" + url.QueryEscape(text(params, "query"))})
	return c, err
}

// met reports whether a result meets the condition. NaN meets none but !=.
func (c *metricCheck) met(v float64) bool {
	switch c.operator {
	case ">=":
		return v >= c.limit
	case "<=":
		return v <= c.limit
	case ">":
		return v > c.limit
	case "<":
		return v < c.limit
	case "==":
		return v == c.limit
	}
	return v != c.limit
}

// judge returns what a check answers to a step, the new state, and after what time the answer may be
// another one with the same result. The messages do not change with time, because each change is a
// write of a status.
func (c *metricCheck) judge(v float64, was *measured, now time.Time) (returns map[string]any, is measured, left time.Duration) {
	is = measured{c.met(v), now}
	if was != nil && was.met == is.met {
		is.since = was.since
	}
	passed := now.Sub(is.since)
	returns = map[string]any{"result": false, "failed": false}
	switch {
	case is.met && passed >= c.duration:
		returns["result"], returns["message"] = true, fmt.Sprintf("the result has been %s for %s", c.text, c.duration)
	case is.met:
		returns["message"], left = fmt.Sprintf("the result is to be %s for %s", c.text, c.duration), c.duration-passed
	case passed >= c.failDuration:
		returns["failed"], returns["message"] = true, fmt.Sprintf("the result is %v, and has not been %s for %s", v, c.text, c.failDuration)
	default:
		returns["message"], left = fmt.Sprintf("the result is not %s", c.text), c.failDuration-passed
	}
	return returns, is, left
}

// resultOf returns the number in Prometheus's answer to a query.
func resultOf(status int64, body string) (float64, error) {
	var answer struct {
		Data struct {
			Type   string          `json:"resultType"`
			Result json.RawMessage `json:"result"`
		} `json:"data"`
	}
	err := json.Unmarshal([]byte(body), &answer)
	if status != http.StatusOK {
		return 0, fmt.Errorf("the query is answered with %d %s", status, http.StatusText(int(status)))
	}
	if err != nil {
		return 0, errors.New("the query is not answered as by Prometheus")
	}
	sample := answer.Data.Result
	if answer.Data.Type == "vector" {
		var list []struct {
			Value json.RawMessage `json:"value"`
		}
		if json.Unmarshal(sample, &list) != nil || len(list) != 1 {
			return 0, fmt.Errorf("the query has %d results; it must have one", len(list))
		}
		sample = list[0].Value
	}
	var pair []json.RawMessage
	var number string
	if json.Unmarshal(sample, &pair) != nil || len(pair) != 2 || json.Unmarshal(pair[1], &number) != nil {
		return 0, fmt.Errorf("the result of the query is no number, but a %s", answer.Data.Type)
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("the result of the query is no number: %q", number)
	}
	return v, nil
}

// metrics answers whether the result of a query has met a condition for long enough.
func (x *action) metrics() (render.Answer, bool, error) {
	check, err := newMetricCheck(x.Params)
	if err != nil {
		return render.Answer{}, false, err
	}
	answer, ready, err := x.once(func() (render.Answer, error) {
		got, err := x.r.Requests.Request(x.r.Ctx(), check.request, nil)
		if err != nil {
			return render.Answer{}, err
		}
		status, _ := got.Returns["statusCode"].(int64)
		body, _ := got.Returns["body"].(string)
		v, err := resultOf(status, body)
		return render.Answer{Returns: map[string]any{"value": v}}, err
	})
	if !ready || err != nil {
		return render.Answer{}, false, err
	}
	v, _ := answer.Returns["value"].(float64)
	key := x.step + "/" + x.Key
	returns, is, left := check.judge(v, x.w.checks[key], x.r.Now())
	if x.w.checks == nil {
		x.w.checks = map[string]*measured{}
	}
	x.w.checks[key] = &is
	if left > 0 {
		x.a.WakeAfter(left)
	}
	return render.Answer{Returns: returns}, true, nil
}
