package engine

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// retry is the state of the attempts at a template with a retryStrategy.
type retry struct {
	run      *Run
	node     *node
	call     call
	inputs   *inputsScope
	strategy wf.RetryStrategy
	attempts []*node
}

func (r *Run) startRetry(n *node, c *call, t *compiled, inputs *inputsScope) *node {
	if r.begin(n, c, wf.NodeRetry) {
		return n
	}
	n.Inputs = inputs.resolved
	y := &retry{run: r, node: n, call: *c, inputs: inputs, strategy: *t.RetryStrategy.DeepCopy()}
	if err := template.Resolve(&y.strategy, []template.Scope{r.globals, inputs}, known...); err != nil {
		n.reject("retryStrategy: " + err.Error())
		return n
	}
	y.next()
	return n
}

// next starts an attempt.
func (y *retry) next() {
	c := y.call
	i := len(y.attempts)
	c.name, c.display = fmt.Sprintf("%s(%d)", c.name, i), fmt.Sprintf("%s(%d)", c.display, i)
	c.owner, c.edges, c.parent, c.retried = y, []*node{y.node}, y.node, true
	c.attempt = y.variables()
	if a := y.strategy.Affinity; a != nil && a.NodeAntiAffinity != nil {
		for _, n := range y.attempts {
			if n.HostNodeName != "" {
				c.avoidHosts = append(c.avoidHosts, n.HostNodeName)
			}
		}
	}
	y.attempts = append(y.attempts, &node{}) // a placeholder: the attempt may have to wait
	y.attempts[i] = y.run.execute(c)
}

// variables returns the variables about earlier attempts, for an attempt and for the decision about
// another one.
func (y *retry) variables() template.Map {
	v := template.Map{"retries": strconv.Itoa(len(y.attempts))}
	if len(y.attempts) == 0 {
		v["lastRetry.exitCode"], v["lastRetry.status"], v["lastRetry.duration"], v["lastRetry.message"] = "0", "", "0", ""
		return v
	}
	last := y.attempts[len(y.attempts)-1]
	v["lastRetry.exitCode"] = "-1"
	if last.Outputs != nil && last.Outputs.ExitCode != nil {
		v["lastRetry.exitCode"] = *last.Outputs.ExitCode
	}
	v["lastRetry.status"], v["lastRetry.message"] = string(last.Phase), last.Message
	v["lastRetry.duration"] = strconv.Itoa(int(last.FinishedAt.Sub(last.StartedAt.Time).Seconds()))
	return v
}

func (y *retry) changed(n *node) {
	if n.Phase == wf.PhaseRunning {
		y.node.set(wf.PhaseRunning, "")
	}
}

// fulfilled handles the end of an attempt: the retry node ends, or the next attempt starts, at once
// or after the backoff.
func (y *retry) fulfilled(last *node) {
	y.attempts[len(y.attempts)-1] = last
	n := y.node
	switch {
	case last.Daemon():
		n.Daemoned, n.PodIP = last.Daemoned, last.PodIP
		n.touch()
		y.run.queue = append(y.run.queue, n)
		return
	case !last.Phase.FailedOrError():
		n.give(last.Outputs)
		n.Daemoned = nil
		n.set(wf.PhaseSucceeded, "")
		return
	}
	n.Daemoned = nil
	n.give(last.Outputs)
	if last.broken {
		n.broken = true
		n.set(last.Phase, last.Message)
		return
	}
	if y.run.stopped(&y.call) {
		n.set(last.Phase, y.run.stopping)
		return
	}
	wait, refusal, err := y.decide(last)
	switch {
	case err != nil:
		n.reject("retryStrategy: " + err.Error())
	case refusal != "":
		n.set(last.Phase, refusal)
	case wait > 0 && last.FinishedAt.Add(wait).After(y.run.now):
		n.set(wf.PhaseRunning, "Backoff for "+humanize(wait))
		put(&y.run.backoffs, n.ID, y)
		y.run.at(last.FinishedAt.Add(wait), y.again)
	default:
		y.again()
	}
}

// again starts the next attempt after the backoff, unless the workflow has been stopped meanwhile.
func (y *retry) again() {
	delete(y.run.backoffs, y.node.ID)
	if y.node.Phase.Fulfilled() {
		return
	}
	y.node.set(wf.PhaseRunning, "")
	y.next()
}

// stop ends the retry node during the backoff, in the phase of the last attempt.
func (y *retry) stop(message string) {
	delete(y.run.backoffs, y.node.ID)
	y.node.set(y.attempts[len(y.attempts)-1].Phase, message)
}

// decide returns the delay before the next attempt, or in refusal the reason why there is none.
func (y *retry) decide(last *node) (wait time.Duration, refusal string, err error) {
	s := &y.strategy
	if b := s.Backoff; b != nil {
		if wait, refusal, err = y.backoff(b, last); refusal != "" || err != nil {
			return
		}
	}
	policy := cmp.Or(s.RetryPolicy, wf.RetryOnFailure)
	if s.RetryPolicy == "" && s.Expression != "" {
		policy = wf.RetryAlways
	}
	var wanted bool
	switch policy {
	case wf.RetryAlways:
		wanted = true
	case wf.RetryOnFailure:
		wanted = last.Phase == wf.PhaseFailed
	case wf.RetryOnError:
		wanted = last.Phase == wf.PhaseError
	case wf.RetryOnTransientError:
		wanted = y.run.config.Transient != nil && y.run.config.Transient(last.Message)
	default:
		return 0, "", fmt.Errorf("retryPolicy '%s' is not known", policy)
	}
	if !wanted {
		return 0, cmp.Or(last.Message, "not retried"), nil
	}
	if s.Limit != nil {
		limit, err := strconv.Atoi(s.Limit.String())
		if err != nil {
			return 0, "", fmt.Errorf("limit '%s' is not a number", s.Limit.String())
		}
		if len(y.attempts) > limit {
			return 0, "No more retries left", nil
		}
	}
	if s.Expression != "" {
		variables := y.variables()
		variables["retries"] = strconv.Itoa(len(y.attempts) - 1)
		again, err := evaluate(s.Expression, []template.Scope{y.run.globals, y.inputs, variables})
		if err != nil {
			return 0, "", fmt.Errorf("expression: %w", err)
		}
		if !again {
			return 0, "retryStrategy.expression evaluated to false", nil
		}
	}
	return wait, "", nil
}

func (y *retry) backoff(b *wf.Backoff, last *node) (wait time.Duration, refusal string, err error) {
	if b.Duration == "" {
		return 0, "", fmt.Errorf("backoff.duration is missing")
	}
	if wait, err = duration(b.Duration); err != nil {
		return 0, "", fmt.Errorf("backoff.duration: %w", err)
	}
	longest := 365 * 24 * time.Hour
	if b.Cap != "" {
		if longest, err = duration(b.Cap); err != nil {
			return 0, "", fmt.Errorf("backoff.cap: %w", err)
		}
	}
	if b.Factor != nil {
		factor, err := strconv.ParseFloat(b.Factor.String(), 64)
		if err != nil {
			return 0, "", fmt.Errorf("backoff.factor: '%s' is not a number", b.Factor.String())
		}
		for i := 1; i < len(y.attempts) && factor > 0 && wait < longest; i++ {
			wait = time.Duration(float64(wait) * factor)
		}
	}
	wait = min(wait, longest)
	if b.MaxDuration != "" {
		most, err := duration(b.MaxDuration)
		if err != nil {
			return 0, "", fmt.Errorf("backoff.maxDuration: %w", err)
		}
		end := y.attempts[0].StartedAt.Add(most)
		if last.FinishedAt.After(end) {
			return 0, "Max duration limit exceeded", nil
		}
		if last.FinishedAt.Add(wait).After(end) {
			return 0, "Backoff would exceed max duration limit", nil
		}
	}
	return wait, "", nil
}

// humanize formats a duration in words: "2 minutes 5 seconds".
func humanize(d time.Duration) string {
	s := int(d.Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%d seconds", s)
	case s < 3600:
		return fmt.Sprintf("%d minutes %d seconds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d hours %d minutes", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d days %d hours", s/86400, s%86400/3600)
}
