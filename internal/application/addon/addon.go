package addon

import (
	"errors"
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// Metadata is what metadata.yaml says.
type Metadata struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	Description string `json:"description"`
	Icon        string `json:"icon"`
	URL         string `json:"url,omitempty"`
	// Tags and UXPlugins are for clients that show addons.
	Tags         []string          `json:"tags,omitempty"`
	UXPlugins    map[string]string `json:"uxPlugins,omitempty"`
	DeployTo     *DeployTo         `json:"deployTo,omitempty"`
	Dependencies []Dependency      `json:"dependencies,omitempty"`
	// NeedNamespace are namespaces that the addon's objects are in.
	NeedNamespace []string `json:"needNamespace,omitempty"`
	// Invisible addons are only enabled as dependencies of others.
	Invisible   bool              `json:"invisible"`
	System      *System           `json:"system,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// DeployTo says in which clusters an addon without template.cue is deployed.
type DeployTo struct {
	// RuntimeCluster deploys it to managed clusters, too. RuntimeClusterOld is its older name.
	RuntimeCluster    bool `json:"runtimeCluster"`
	RuntimeClusterOld bool `json:"runtime_cluster,omitempty"`
	// DisableControlPlane has no effect, as in KubeVela.
	DisableControlPlane bool `json:"disableControlPlane"`
}

// Dependency is another addon that is enabled first.
type Dependency struct {
	Name string `json:"name,omitempty"`
	// Version is a version, a range of versions, or empty.
	Version string `json:"version,omitempty"`
}

// System has ranges of versions that an addon requires.
type System struct {
	Vela       string `json:"vela,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
}

// Addon is an addon that has been read.
type Addon struct {
	Metadata
	// Readme is the text of README.md, or empty.
	Readme string

	files Files
	// parameters are the files that declare the parameters, and shared are the CUE files in resources/
	// that belong to template.cue. components are the others.
	parameters, shared, components []render.Source
	template, notes                *render.Source
}

// Names of an addon's files.
const (
	metadataFile     = "metadata.yaml"
	templateCUEFile  = "template.cue"
	templateYAMLFile = "template.yaml"
	parameterFile    = "parameter.cue"
	notesFile        = "NOTES.cue"
	resourcesFolder  = "resources"
)

// Open reads an addon. It evaluates nothing.
func Open(files Files) (*Addon, error) {
	text, ok := files[metadataFile]
	if !ok {
		return nil, errors.New("it is no addon: it has no metadata.yaml")
	}
	a := &Addon{files: files, Readme: string(files["README.md"])}
	if err := yamldoc.Unmarshal(text, &a.Metadata, metadataFile); err != nil {
		return nil, fmt.Errorf("%s: %w", metadataFile, err)
	}
	if problems := validation.IsDNS1123Label(a.Name); len(problems) > 0 {
		return nil, fmt.Errorf("%s: the name %q: %s", metadataFile, a.Name, problems[0])
	}
	if problems := validation.IsValidLabelValue(a.Version); a.Version == "" || len(problems) > 0 {
		return nil, fmt.Errorf("%s: %q is no version", metadataFile, a.Version)
	}
	if files[templateCUEFile] != nil && files[templateYAMLFile] != nil {
		return nil, fmt.Errorf("addon %s has template.cue and template.yaml; one of them is used", a.Name)
	}
	for _, left := range []string{"godef", "modules"} {
		if len(files.in(left)) > 0 {
			return nil, fmt.Errorf("addon %s: the folder %s/ is not supported", a.Name, left)
		}
	}
	source := func(name string) *render.Source {
		if text, ok := files[name]; ok {
			return &render.Source{Name: name, Text: string(text)}
		}
		return nil
	}
	a.template, a.notes = source(templateCUEFile), source(notesFile)
	for _, name := range []string{parameterFile, resourcesFolder + "/" + parameterFile} {
		if s := source(name); s != nil {
			a.parameters = append(a.parameters, *s)
			break // the older place counts if the newer one has none
		}
	}
	for _, name := range files.in(resourcesFolder, ".cue") {
		if path.Base(name) == parameterFile {
			continue
		}
		s := source(name)
		clause, err := render.PackageOf(*s)
		if err != nil {
			return nil, fmt.Errorf("addon %s: %w", a.Name, err)
		}
		if clause == "main" {
			a.shared = append(a.shared, *s)
		} else {
			a.components = append(a.components, *s)
		}
	}
	return a, nil
}

// String returns the addon's name and version.
func (a *Addon) String() string { return a.Name + " " + a.Version }
