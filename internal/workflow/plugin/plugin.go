package plugin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
)

const (
	// callTimeout bounds one call of a plugin.
	callTimeout = 30 * time.Second
	// patience is how long a plugin may be out of reach before the node ends in Error.
	patience = 5 * time.Minute
	// firstPause is the delay before a plugin that is out of reach is called again; it doubles up to
	// maxPause.
	firstPause, maxPause = 500 * time.Millisecond, 15 * time.Second
	// requeueDefault is the delay before a plugin that is not done is called again, if it names none.
	requeueDefault = 10 * time.Second
	// answerMax bounds an answer, in bytes.
	answerMax = 2 << 20
)

// Caller calls the plugins of a pod. The zero value is ready to use.
type Caller struct {
	Dir  string                                     // "": execapi.Dir
	Host string                                     // "": localhost
	Wait func(context.Context, time.Duration) error // nil: waits
	Put  func(*execapi.Task, *execapi.Report) error // nil: writes a WorkflowTaskResult
	Log  func(format string, args ...any)           // nil: standard error
}

// Tokens makes a token for each plugin.
func (c Caller) Tokens(plan *execapi.PluginPlan) error {
	for _, p := range plan.Plugins {
		dir := filepath.Join(cmp.Or(c.Dir, execapi.Dir), execapi.PluginDir(p.Name))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, execapi.PluginToken), []byte(rand.Text()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// reply is the answer of a plugin. Without a node, the template is not for the plugin.
type reply struct {
	Node *struct {
		Phase    string   `json:"phase"`
		Message  string   `json:"message"`
		Progress string   `json:"progress"`
		Outputs  *outputs `json:"outputs"`
	} `json:"node"`
	Requeue string `json:"requeue"`
}

type outputs struct {
	Parameters []struct {
		Name  string          `json:"name"`
		Value json.RawMessage `json:"value"`
	} `json:"parameters"`
	Artifacts []json.RawMessage `json:"artifacts"`
	Result    *string           `json:"result"`
}

func (r *reply) taken() bool { return r.Node != nil && r.Node.Phase != "" }

// Run runs the plan and returns the termination message and the exit code.
func (c Caller) Run(ctx context.Context, plan *execapi.PluginPlan) (message string, code int) {
	limit := cmp.Or(plan.MaxMessage, execapi.MaxMessage)
	report, code, err := c.run(ctx, plan)
	if err == nil {
		if _, fits := report.Encode(limit); !fits && !plan.Result {
			report.Result, report.Parameters = nil, nil // nobody reads them
		}
		message, err = executor.Compose(report, limit, plan.Task, c.Put)
	}
	if err != nil {
		return execapi.Report{Plain: true, Failed: true, Message: execapi.Shorten(err.Error())}.Fit(limit), execapi.ExitExecutor
	}
	return message, code
}

func (c Caller) run(ctx context.Context, plan *execapi.PluginPlan) (execapi.Report, int, error) {
	report := execapi.Report{Plain: true}
	p, answer, err := c.first(ctx, plan)
	for err == nil {
		switch answer.Node.Phase {
		case "Succeeded", "Failed":
			code := 0
			if answer.Node.Phase == "Failed" {
				code = 1
			}
			report.Message, report.Progress = execapi.Shorten(answer.Node.Message), answer.Node.Progress
			return report, code, take(&report, answer.Node.Outputs)
		case "Error":
			return report, 0, errors.New(cmp.Or(answer.Node.Message, "plugin "+p.Name+" says Error"))
		case "Pending", "Running":
		default:
			return report, 0, fmt.Errorf("plugin %s: phase '%s' is none that a node of a plugin can have", p.Name, answer.Node.Phase)
		}
		pause := requeueDefault
		if answer.Requeue != "" {
			if pause, err = time.ParseDuration(answer.Requeue); err != nil || pause < 0 {
				return report, 0, fmt.Errorf("plugin %s: requeue: '%s' is not a duration", p.Name, clip.Text(answer.Requeue, 100))
			}
		}
		c.log("%s: %s %s; again in %s", p.Name, answer.Node.Phase, answer.Node.Message, pause)
		if err = c.wait(ctx, pause); err != nil {
			break
		}
		if answer, err = c.call(ctx, plan, p); err == nil && !answer.taken() {
			err = fmt.Errorf("plugin %s no longer knows the template", p.Name)
		}
	}
	return report, 0, err
}

// first returns the first plugin that takes the template, and its answer.
func (c Caller) first(ctx context.Context, plan *execapi.PluginPlan) (execapi.Plugin, *reply, error) {
	var names []string
	for _, p := range plan.Plugins {
		answer, err := c.call(ctx, plan, p)
		if err != nil {
			return p, nil, err
		}
		if answer.taken() {
			return p, answer, nil
		}
		names = append(names, p.Name)
	}
	err := fmt.Errorf("no executor plugin takes the template; asked: %s", cmp.Or(strings.Join(names, ", "), "none"))
	for _, fault := range plan.Faults {
		err = fmt.Errorf("%w; %s", err, fault)
	}
	return execapi.Plugin{}, nil, err
}

// take copies outputs into a report.
func take(report *execapi.Report, out *outputs) error {
	if out == nil {
		return nil
	}
	report.Result = out.Result
	for _, p := range out.Parameters {
		if report.Parameters == nil {
			report.Parameters = map[string]string{}
		}
		var text string
		if json.Unmarshal(p.Value, &text) != nil { // a number or boolean
			text = string(p.Value)
		}
		report.Parameters[p.Name] = text
	}
	for _, a := range out.Artifacts {
		var named struct{ Name string }
		if err := json.Unmarshal(a, &named); err != nil || named.Name == "" {
			return errors.New("plugin: an output artifact has no name")
		}
		report.Artifacts = append(report.Artifacts, execapi.Saved{Name: named.Name, Location: a})
	}
	return nil
}

// call calls a plugin until it answers.
func (c Caller) call(ctx context.Context, plan *execapi.PluginPlan, p execapi.Plugin) (*reply, error) {
	body, err := json.Marshal(map[string]any{
		"workflow": map[string]any{"metadata": plan.Workflow}, "template": plan.Template,
	})
	if err != nil {
		return nil, err
	}
	waited, pause := time.Duration(0), firstPause
	for {
		answer, again, err := c.once(ctx, p, body)
		if err == nil {
			return answer, nil
		}
		err = fmt.Errorf("plugin %s: %w", p.Name, err)
		if !again || waited >= patience {
			return nil, err
		}
		c.log("%v; again in %s", err, pause)
		if wait := c.wait(ctx, pause); wait != nil {
			return nil, errors.Join(err, wait)
		}
		waited, pause = waited+pause, min(2*pause, maxPause)
	}
}

func (c Caller) once(ctx context.Context, p execapi.Plugin, body []byte) (answer *reply, again bool, err error) {
	token, err := os.ReadFile(filepath.Join(cmp.Or(c.Dir, execapi.Dir), execapi.PluginDir(p.Name), execapi.PluginToken))
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	address := fmt.Sprintf("http://%s:%d/api/v1/template.execute", cmp.Or(c.Host, "localhost"), p.Port)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+string(token))
	client := &http.Client{Transport: &http.Transport{}} // without a proxy: the plugin is in the pod
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return nil, true, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerMax+1))
	switch code := response.StatusCode; {
	case err != nil:
		return nil, true, err
	case code == http.StatusNotFound: // it runs no templates
		return &reply{}, false, nil
	case code/100 != 2:
		return nil, code == http.StatusServiceUnavailable, fmt.Errorf("%s: %s", response.Status, clip.Text(string(text), 300))
	case len(text) > answerMax:
		return nil, false, fmt.Errorf("the answer is larger than %d bytes", answerMax)
	}
	answer = &reply{}
	if err := json.Unmarshal(text, answer); err != nil {
		return nil, false, fmt.Errorf("the answer is not as the protocol says: %w", err)
	}
	return answer, false, nil
}

func (c Caller) wait(ctx context.Context, d time.Duration) error {
	if c.Wait != nil {
		return c.Wait(ctx, d)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (c Caller) log(format string, args ...any) {
	if c.Log != nil {
		c.Log(format, args...)
		return
	}
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
