package pods

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// Plugin is an executor plugin: a container that runs plugin templates.
type Plugin struct {
	Name      string
	Container corev1.Container
	// Fault says why the plugin cannot be used; "" if it can.
	Fault string
	// Token is true if the container gets the token of the plugin's own service account.
	Token bool
}

const (
	// tokensContainer makes the tokens by which plugins know main.
	tokensContainer = "tokens"
	// pluginSuffix ends the names of the ConfigMaps of plugins, and of their service accounts.
	pluginSuffix = "-executor-plugin"
	// pluginGraceSeconds is the time that plugins have to end after main.
	pluginGraceSeconds = 2
	// tokenDir is where containers find the token of a service account.
	tokenDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenVolume has main's token, which plugins do not get.
	tokenVolume = "lockstep-token"
)

// ParsePlugin parses the ConfigMap of an executor plugin.
func ParsePlugin(m *corev1.ConfigMap) (Plugin, error) {
	p := Plugin{Name: strings.TrimSuffix(m.Name, pluginSuffix), Token: m.Data["sidecar.automountServiceAccountToken"] == "true"}
	fail := func(format string, args ...any) (Plugin, error) {
		return p, fmt.Errorf("executor plugin %s/%s: "+format, append([]any{m.Namespace, m.Name}, args...)...)
	}
	text, found := m.Data["sidecar.container"]
	if !found {
		return fail("sidecar.container: is required")
	}
	if err := yamldoc.UnmarshalStrict([]byte(text), &p.Container, "sidecar.container"); err != nil {
		return fail("sidecar.container: %w", err)
	}
	switch c := &p.Container; {
	case c.Name == "":
		return fail("sidecar.container.name: is required")
	case len(c.Ports) == 0 || c.Ports[0].ContainerPort == 0:
		return fail("sidecar.container.ports: is required: the first one is called")
	case len(c.Resources.Requests) == 0 || len(c.Resources.Limits) == 0:
		return fail("sidecar.container.resources: needs requests and limits")
	case c.SecurityContext == nil:
		return fail("sidecar.container.securityContext: is required")
	}
	return p, nil
}

// FindPlugins returns the plugins of ConfigMaps in order of their names. Of two with the same name,
// the one that is first counts. Only those that the spec names are wanted, if it names any.
func FindPlugins(wanted []wf.ExecutorPlugin, maps []*corev1.ConfigMap) ([]Plugin, error) {
	var found []Plugin
	have := map[string]bool{}
	for _, m := range maps {
		name := strings.TrimSuffix(m.Name, pluginSuffix)
		if have[name] || len(wanted) > 0 && !slices.Contains(wanted, wf.ExecutorPlugin{Name: name}) {
			continue
		}
		p, err := ParsePlugin(m)
		if err != nil && len(wanted) > 0 {
			return nil, err
		}
		if err != nil { // others may take the template
			p.Fault = err.Error()
		}
		have[name] = true
		found = append(found, p)
	}
	for _, w := range wanted {
		if !have[w.Name] {
			return nil, fmt.Errorf("executorPlugins: there is no executor plugin '%s'", w.Name)
		}
	}
	slices.SortFunc(found, func(a, b Plugin) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// plugin adds the plugins as sidecars, and a main container from our image that calls them.
func (b *builder) plugin() error {
	if len(b.options.Plugins) == 0 {
		return fmt.Errorf("plugin: there is no executor plugin: no ConfigMap of the namespace, or of the manager's, has the label %s: %s",
			wf.LabelConfigMapType, wf.ConfigMapTypePlugin)
	}
	t := b.t.DeepCopy()
	if b.create.Inputs != nil {
		t.Inputs = *b.create.Inputs
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	plan := execapi.PluginPlan{
		Workflow: execapi.PluginWorkflow{Name: b.workflow.Name, Namespace: b.workflow.Namespace, UID: string(b.workflow.UID)}, Template: text,
		Result: b.create.IncludeResult || len(t.Outputs.Parameters) > 0, MaxMessage: b.maxMessage(1 + len(b.options.Plugins)), Task: b.task(),
	}
	b.share()
	mount := corev1.VolumeMount{Name: dirVolume, MountPath: execapi.Dir}
	taken := map[string]bool{MainContainer: true, tokensContainer: true, InitContainer: true, WaitContainer: true}
	for _, p := range b.options.Plugins {
		if p.Fault != "" {
			plan.Faults = append(plan.Faults, p.Fault)
			continue
		}
		c := *p.Container.DeepCopy()
		if taken[c.Name] {
			return fmt.Errorf("executor plugin %s: the name of its container is taken: %s", p.Name, c.Name)
		}
		taken[c.Name] = true
		c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: dirVolume, MountPath: execapi.Dir, SubPath: execapi.PluginDir(p.Name), ReadOnly: true})
		if p.Token {
			name := secretVolume(p.Name + pluginSuffix)
			b.addVolume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: p.Name + pluginSuffix + ".service-account-token"},
			}})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: tokenDir, ReadOnly: true})
		}
		b.plugins = append(b.plugins, c)
		plan.Plugins = append(plan.Plugins, execapi.Plugin{Name: p.Name, Port: c.Ports[0].ContainerPort})
	}
	encoded, err := execapi.Encode(plan)
	if err != nil {
		return fmt.Errorf("plugin: %w", err)
	}
	// A plugin is often a script that ignores SIGTERM: the node would end half a minute late.
	b.pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](pluginGraceSeconds)
	// Plugins do not get the token of the pod's service account: only main does.
	b.pod.Spec.AutomountServiceAccountToken = ptr.To(false)
	b.addVolume(accountToken())
	for _, c := range []*corev1.Container{{Name: MainContainer, Command: []string{execapi.OwnIO, "plugin"}}, {Name: tokensContainer, Command: []string{execapi.OwnIO, "tokens"}}} {
		c.VolumeMounts = []corev1.VolumeMount{mount}
		made := b.own(*c)
		made.Env = append(made.Env, corev1.EnvVar{Name: execapi.PluginPlanEnv, Value: encoded})
		if c.Name == tokensContainer {
			b.inits = append(b.inits, made)
			continue
		}
		made.VolumeMounts = append(made.VolumeMounts, corev1.VolumeMount{Name: tokenVolume, MountPath: tokenDir, ReadOnly: true})
		b.mains = append(b.mains, made)
	}
	return nil
}

// accountToken returns the volume that Kubernetes mounts into containers by default.
func accountToken() corev1.Volume {
	return corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3607)}},
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
		}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
			Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
		}}}},
	}}}}
}
