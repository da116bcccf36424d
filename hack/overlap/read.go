package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// file is one file with definitions.
type file struct {
	name   string // path in the directory, without the ending .cue
	pieces [][]string
}

// sections are the fields of a definition object that hold CUE.
var sections = map[string]bool{"template": true, "healthPolicy": true, "customStatus": true, "details": true}

// readFolder reads the definitions in a directory and its subdirectories, in the order of their
// paths.
func readFolder(folder string) ([]file, error) {
	var out []file
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var pieces [][]string
		switch filepath.Ext(path) {
		case ".cue":
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			pieces = piecesOf(data)
		case ".yaml", ".yml":
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			texts := textsOf(data)
			if len(texts) == 0 {
				return nil // no definition
			}
			for _, text := range texts {
				pieces = append(pieces, piecesOf([]byte(text))...)
			}
		default:
			return nil
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		out = append(out, file{strings.TrimSuffix(filepath.ToSlash(name), ".cue"), pieces})
		return nil
	})
	return out, err
}

// textsOf returns the CUE texts in YAML.
func textsOf(data []byte) []string {
	var out []string
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			return blocksOf(string(data)) // for example a chart's template
		}
		out = append(out, textsIn(&node)...)
	}
}

func textsIn(node *yaml.Node) []string {
	var out []string
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 1 && child.Kind == yaml.ScalarNode && sections[node.Content[i-1].Value] {
			out = append(out, child.Value)
		}
		out = append(out, textsIn(child)...)
	}
	return out
}

// blockHead matches the line before a block of text.
var blockHead = regexp.MustCompile(`^( *)(?:- )?([A-Za-z]+): *[|>][-+0-9]*\s*$`)

// blocksOf returns the CUE texts in YAML that does not parse. It finds them by their indentation.
func blocksOf(data string) []string {
	var out []string
	lines := strings.Split(data, "\n")
	for i, line := range lines {
		head := blockHead.FindStringSubmatch(line)
		if head == nil || !sections[head[2]] {
			continue
		}
		var block strings.Builder
		for _, line := range lines[i+1:] {
			inside := strings.TrimLeft(line, " ")
			if strings.TrimSpace(line) != "" && len(line)-len(inside) <= len(head[1]) {
				break
			}
			block.WriteString(inside + "\n")
		}
		out = append(out, block.String())
	}
	return out
}
