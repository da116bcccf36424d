package engine

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// unused calls yield with each field that is set in a spec and has no effect.
func unused(spec *wf.WorkflowSpec, yield func(place)) {
	if spec.Executor != nil {
		yield(place{}.at("executor"))
	}
	kills := func(m *wf.Metadata, at place) {
		if m == nil {
			return
		}
		for _, key := range sortedKeys(m.Annotations) {
			if strings.HasPrefix(key, wf.PrefixKillCommand) {
				yield(at.at("annotations." + key))
			}
		}
	}
	kills(spec.PodMetadata, place{}.at("podMetadata"))
	for i := range spec.Templates {
		t := &spec.Templates[i]
		kills(&t.Metadata, place{}.named("templates", i, t.Name).at("metadata"))
		if key := gangIn(&t.Metadata); key != "" && (ownClaims(spec.ResourceClaims, spec.Volumes) || ownClaims(t.ResourceClaims, t.Volumes)) {
			yield(place{}.named("templates", i, t.Name).at("metadata").at(key + " (pods with claims or ephemeral volumes are placed one by one)"))
		}
		if t.Executor != nil {
			yield(place{}.named("templates", i, t.Name).at("executor"))
		}
		if t.Steps != nil || t.DAG != nil || t.Suspend != nil {
			for _, name := range ofPods(t) {
				yield(place{}.named("templates", i, t.Name).at(name))
			}
		}
		for j, list := range [][]wf.Artifact{t.Inputs.Artifacts, t.Outputs.Artifacts} {
			for k := range list {
				if list[k].ArchiveLogs != nil {
					at := place{}.named("templates", i, t.Name).at([]string{"inputs", "outputs"}[j])
					yield(at.named("artifacts", k, list[k].Name).at("archiveLogs"))
				}
			}
		}
		if t.Memoize == nil || t.Memoize.Cache == nil || t.Memoize.Cache.ConfigMap == nil {
			continue
		}
		at := place{}.named("templates", i, t.Name).at("memoize.cache.configMap")
		if t.Memoize.Cache.ConfigMap.Key != "" {
			yield(at.at("key"))
		}
		if t.Memoize.Cache.ConfigMap.Optional != nil {
			yield(at.at("optional"))
		}
	}
}

// gangIn returns the path, within metadata, of the annotation or label that names a gang, or "".
func gangIn(m *wf.Metadata) string {
	switch {
	case m.Annotations[wf.KeyGang] != "":
		return "annotations." + wf.KeyGang
	case m.Labels[wf.KeyGang] != "":
		return "labels." + wf.KeyGang
	}
	return ""
}

// ownClaims reports whether pods with these claims and volumes have some that no other pod has.
func ownClaims(claims []corev1.PodResourceClaim, volumes []corev1.Volume) bool {
	return len(claims) > 0 || slices.ContainsFunc(volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil })
}

// warnUnused names the fields that have no effect in a condition of the workflow.
func (r *Run) warnUnused() {
	var fields []string
	unused(r.spec, func(p place) { fields = append(fields, strings.TrimPrefix(p.where, ".")) })
	s := &r.Workflow.Status
	if len(fields) == 0 || slices.ContainsFunc(s.Conditions, isSpecWarning) {
		return
	}
	s.Conditions, r.out.Status = append(s.Conditions, wf.Condition{
		Type: wf.ConditionSpecWarning, Status: metav1.ConditionTrue, Message: "no effect: " + shorten(strings.Join(fields, ", ")),
	}), true
}

func isSpecWarning(c wf.Condition) bool { return c.Type == wf.ConditionSpecWarning }
