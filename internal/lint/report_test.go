package lint

import (
	"encoding/json"
	"testing"
)

// TestReports checks what programs read of findings: the file, the line, the severity, the message.
func TestReports(t *testing.T) {
	text := "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: w}\nspec:\n  entrypoint: main\n" +
		"  templates:\n  - name: main\n    container: {image: a, comand: [c]}\n    executor: {serviceAccountName: s}\n"
	_, findings := Lint([]File{{"flows/w.yaml", []byte(text)}}, Options{Check: check})
	data, err := JSON(findings)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		File, Severity, Message string
		Line                    int
	}
	if err := json.Unmarshal(data, &list); err != nil || len(list) == 0 {
		t.Fatalf("%v\n%s", err, data)
	}
	if f := list[0]; f.File != "flows/w.yaml" || f.Line != 8 || f.Severity != "error" || f.Message == "" {
		t.Errorf("%+v", f)
	}
	if data, err = SARIF(append(findings, Finding{File: "whole", Message: "m", Warning: true})); err != nil {
		t.Fatal(err)
	}
	var log sarifLog
	if err := json.Unmarshal(data, &log); err != nil || log.Version != "2.1.0" || len(log.Runs) != 1 {
		t.Fatalf("%v\n%s", err, data)
	}
	results := log.Runs[0].Results
	first, last := results[0], results[len(results)-1]
	if at := first.Locations[0].Physical; at.Artifact.URI != "flows/w.yaml" || at.Region.StartLine != 8 || first.Level != "error" {
		t.Errorf("%+v", first)
	}
	if last.Level != "warning" || last.Locations[0].Physical.Region != nil {
		t.Errorf("%+v", last)
	}
	if data, err := JSON(nil); err != nil || string(data) != "[]" {
		t.Errorf("no findings: %s, %v", data, err)
	}
}
