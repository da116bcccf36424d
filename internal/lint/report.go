package lint

import (
	"encoding/json"
	"path/filepath"
)

// Severity returns "warning" or "error".
func (f Finding) Severity() string {
	if f.Warning {
		return "warning"
	}
	return "error"
}

// JSON returns findings as a JSON list for programs.
func JSON(findings []Finding) ([]byte, error) {
	type finding struct {
		File     string `json:"file"`
		Line     int    `json:"line,omitempty"`
		Severity string `json:"severity"`
		Message  string `json:"message"`
	}
	out := make([]finding, 0, len(findings))
	for _, f := range findings {
		out = append(out, finding{f.File, f.Line, f.Severity(), f.Message})
	}
	return json.MarshalIndent(out, "", "  ")
}

// The parts of SARIF 2.1.0 that editors and code hosts read to show findings beside the text.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
)

// rule is the only rule: messages say what is wrong.
const rule = "manifest"

// SARIF returns findings as a log of the Static Analysis Results Interchange Format.
func SARIF(findings []Finding) ([]byte, error) {
	results := make([]sarifResult, 0, len(findings))
	for _, f := range findings {
		at := sarifPhysical{Artifact: sarifArtifact{filepath.ToSlash(f.File)}}
		if f.Line > 0 {
			at.Region = &sarifRegion{f.Line}
		}
		results = append(results, sarifResult{rule, f.Severity(), sarifMessage{f.Message}, []sarifLocation{{at}}})
	}
	return json.MarshalIndent(sarifLog{
		Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0",
		Runs: []sarifRun{{sarifTool{sarifDriver{"lockstep lint", []sarifRule{{rule}}}}, results}},
	}, "", "  ")
}
