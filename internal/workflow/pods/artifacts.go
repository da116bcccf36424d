package pods

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	inputsVolume = "input-artifacts"
	// uploadGraceSeconds bounds the uploads after main has ended. commandGraceSeconds is the time
	// that a command of a pod with uploads has to end after a signal.
	uploadGraceSeconds  = 600
	commandGraceSeconds = 30
)

// moves collects the artifacts and logs of a pod, by how they are transferred.
type moves struct {
	load   []execapi.Load
	upload []execapi.Upload
	in     *carrier
	out    *carrier
	saves  map[string][]execapi.Save // by name of the container
	logs   map[string]string         // log file, by name of the container
}

// artifacts plans the transfer of artifacts. Input artifacts are mounted into all main containers;
// output artifacts come from the container named main.
func (b *builder) artifacts() error {
	b.moves = moves{in: newCarrier(), out: newCarrier(), saves: map[string][]execapi.Save{}, logs: map[string]string{}}
	if in := b.create.Inputs; in != nil {
		for i := range in.Artifacts {
			if err := b.loadArtifact(&in.Artifacts[i]); err != nil {
				return fmt.Errorf("inputs.artifacts.%s: %w", in.Artifacts[i].Name, err)
			}
		}
	}
	if out := b.create.Outputs; out != nil {
		for i := range out.Artifacts {
			if err := b.saveArtifact(&out.Artifacts[i]); err != nil {
				return fmt.Errorf("outputs.artifacts.%s: %w", out.Artifacts[i].Name, err)
			}
		}
	}
	if err := b.archiveLogs(); err != nil {
		return fmt.Errorf("archiveLogs: %w", err)
	}
	return nil
}

// loadArtifact plans how an input artifact gets to its path.
func (b *builder) loadArtifact(a *wf.Artifact) error {
	if a.Path == "" {
		return nil // it is only passed on
	}
	if !path.IsAbs(a.Path) {
		return fmt.Errorf("path: '%s' is not absolute", a.Path)
	}
	if a.ArtifactLocation == (wf.ArtifactLocation{}) {
		if a.Optional {
			return nil
		}
		return fmt.Errorf("it has no location")
	}
	location, err := b.input(a)
	if err != nil {
		return err
	}
	if location.Raw != nil && !b.inVolume(a.Path) {
		mount, err := b.file("artifact."+a.Name, location.Raw.Data, a.Path, ptr.Deref(a.Mode, 0o644))
		if err != nil {
			return err
		}
		b.mountInMains(mount)
		return nil
	}
	load := execapi.Load{Name: a.Name, To: path.Join(execapi.InputDir, a.Name), Mode: a.Mode, Recurse: a.RecurseMode, Optional: a.Optional}
	load.AsIs = a.Archive != nil && a.Archive.None != nil
	if load.From, err = b.moves.in.location(&location); err != nil {
		return err
	}
	if b.inVolume(a.Path) {
		// The path is in a volume of main, which the init container mounts too.
		load.To = path.Join(execapi.MainRoot, a.Path)
	} else {
		b.mountInMains(corev1.VolumeMount{Name: inputsVolume, MountPath: a.Path, SubPath: a.Name})
	}
	b.moves.load = append(b.moves.load, load)
	return nil
}

// inVolume reports whether a path is inside a volume that the user mounts into main.
func (b *builder) inVolume(file string) bool {
	for _, m := range b.userMounts() {
		if strings.HasPrefix(path.Clean(file)+"/", strings.TrimSuffix(path.Clean(m.MountPath), "/")+"/") {
			return true
		}
	}
	return false
}

// userMounts returns the mounts of main that the user wrote.
func (b *builder) userMounts() []corev1.VolumeMount {
	switch t := b.t; {
	case t.Container != nil:
		return t.Container.VolumeMounts
	case t.Script != nil:
		return t.Script.VolumeMounts
	case t.ContainerSet != nil:
		return t.ContainerSet.VolumeMounts
	}
	return nil
}

func (b *builder) mountInMains(m corev1.VolumeMount) {
	for i := range b.mains {
		b.mains[i].VolumeMounts = append(b.mains[i].VolumeMounts, m)
	}
}

// packing returns how an artifact is packed, and the suffix of its file name.
func packing(a *wf.Artifact) (kind execapi.Archive, level *int32, suffix string) {
	switch {
	case a.Archive != nil && a.Archive.None != nil:
		return execapi.ArchiveNone, nil, ""
	case a.Archive != nil && a.Archive.Zip != nil:
		return execapi.ArchiveZip, nil, ".zip"
	case a.Archive != nil && a.Archive.Tar != nil:
		return execapi.ArchiveTar, a.Archive.Tar.CompressionLevel, ".tgz"
	}
	return execapi.ArchiveTar, nil, ".tgz"
}

// saveArtifact plans how an output artifact gets to its store.
func (b *builder) saveArtifact(a *wf.Artifact) error {
	if a.From != "" || a.FromExpression != "" || a.Path == "" {
		return nil
	}
	if !path.IsAbs(a.Path) {
		return fmt.Errorf("path: '%s' is not absolute", a.Path)
	}
	kind, level, suffix := packing(a)
	save := execapi.Save{Name: a.Name, Path: a.Path, Archive: kind, Level: level, Optional: a.Optional}
	return b.save(MainContainer, a, save, a.Name+suffix)
}

// save adds an artifact that container produces, and an upload unless its store is a volume.
func (b *builder) save(container string, a *wf.Artifact, save execapi.Save, file string) error {
	whole, short, err := b.output(a, file)
	if err != nil {
		return err
	}
	// The reader knows the packing from the artifact's archive field, which it takes over from the
	// writer.
	report, err := json.Marshal(short)
	if err != nil {
		return err
	}
	if whole.Volume != nil {
		// The container writes to the volume itself. It sees nothing of the volume but the
		// directory that the artifact goes to.
		source, name := volumeSource(whole.Volume)
		key := volumeKey(whole.Volume)
		mountPath := path.Join(execapi.RepositoryDir, "out", save.Name)
		for i := range b.mains {
			if b.mains[i].Name == container {
				b.mains[i].VolumeMounts = append(b.mains[i].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: mountPath, SubPath: strings.TrimPrefix(path.Dir("/"+key), "/")})
			}
		}
		b.addVolume(corev1.Volume{Name: name, VolumeSource: source})
		save.To, save.Location = path.Join(mountPath, path.Base(key)), report
		b.moves.saves[container] = append(b.moves.saves[container], save)
		return nil
	}
	save.To = path.Join(execapi.Staged, container, save.Name)
	b.moves.saves[container] = append(b.moves.saves[container], save)
	upload := execapi.Upload{Name: save.Name, From: save.To, Report: report, Optional: save.Optional}
	if upload.To, err = b.moves.out.location(&whole); err != nil {
		return err
	}
	if upload.To.Git != nil || upload.To.Raw != nil {
		return fmt.Errorf("%s: nothing can be saved there", kinds(&whole))
	}
	b.moves.upload = append(b.moves.upload, upload)
	return nil
}

// archiveLogs plans how the logs of the main containers are saved.
func (b *builder) archiveLogs() error {
	wanted := ptr.Deref(b.spec.ArchiveLogs, b.options.Repository != nil && b.options.Repository.ArchiveLogs)
	if l := b.t.ArchiveLocation; l != nil && l.ArchiveLogs != nil {
		wanted = *l.ArchiveLogs
	}
	if !wanted || b.ours() {
		return nil
	}
	for i := range b.mains {
		c := b.mains[i].Name
		file := path.Join(execapi.Dir, c+".log")
		b.moves.logs[c] = file
		save := execapi.Save{Name: c + logsSuffix, Path: file, Archive: execapi.ArchiveNone, Optional: true}
		if err := b.save(c, &wf.Artifact{Name: save.Name}, save, c+".log"); err != nil {
			return err
		}
	}
	return nil
}

// logsSuffix is the suffix of the names of log artifacts.
const logsSuffix = "-logs"

// addVolume adds a volume unless the pod has one of that name.
func (b *builder) addVolume(v corev1.Volume) {
	if !b.hasVolume(v.Name) {
		b.pod.Spec.Volumes = append(b.pod.Spec.Volumes, v)
	}
}

func (b *builder) hasVolume(name string) bool {
	return slices.ContainsFunc(b.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
}

// carry adds the containers that move artifacts.
func (b *builder) carry() error {
	if len(b.moves.load) > 0 {
		plan := execapi.ArtifactPlan{Load: b.moves.load, MaxMessage: b.maxMessage(len(b.mains))}
		c := corev1.Container{Name: InitContainer, Command: []string{execapi.OwnIO, "init"}}
		b.addVolume(corev1.Volume{Name: inputsVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: inputsVolume, MountPath: execapi.InputDir})
		for _, m := range b.userMounts() {
			m.MountPath = path.Join(execapi.MainRoot, m.MountPath)
			c.VolumeMounts = append(c.VolumeMounts, m)
		}
		if b.staged {
			plan.Install = true
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: dirVolume, MountPath: execapi.Dir})
		}
		if err := b.carrier(&c, &plan, b.moves.in); err != nil {
			return err
		}
		b.inits = append([]corev1.Container{c}, b.inits...)
	} else if b.staged {
		b.inits = append([]corev1.Container{b.own(corev1.Container{
			Name: InitContainer, Command: []string{execapi.OwnExec, "install", execapi.StagedExec},
			VolumeMounts: []corev1.VolumeMount{{Name: dirVolume, MountPath: execapi.Dir}},
		})}, b.inits...)
	}
	if len(b.moves.upload) == 0 {
		return nil
	}
	plan := execapi.ArtifactPlan{Upload: b.moves.upload, MaxMessage: b.maxMessage(len(b.mains))}
	for i := range b.mains {
		if len(b.moves.saves[b.mains[i].Name]) > 0 {
			plan.After = append(plan.After, b.mains[i].Name)
		}
	}
	b.share()
	c := corev1.Container{
		Name: WaitContainer, Command: []string{execapi.OwnIO, "wait"}, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		VolumeMounts: []corev1.VolumeMount{{Name: dirVolume, MountPath: execapi.Dir}},
	}
	if err := b.carrier(&c, &plan, b.moves.out); err != nil {
		return err
	}
	b.sidecars = append(b.sidecars, c) // the sidecar started last is stopped first
	b.pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](uploadGraceSeconds)
	return nil
}

// carrier completes a container that moves artifacts.
func (b *builder) carrier(c *corev1.Container, plan *execapi.ArtifactPlan, with *carrier) error {
	text, err := execapi.Encode(plan)
	if err != nil {
		return err
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: execapi.ArtifactPlanEnv, Value: text})
	c.VolumeMounts = append(c.VolumeMounts, with.mounts...)
	for _, v := range with.volumes {
		if same := slices.IndexFunc(b.pod.Spec.Volumes, func(o corev1.Volume) bool { return o.Name == v.Name }); same >= 0 && v.Secret != nil {
			// both containers read the secret, so the volume has the keys of both
			s := b.pod.Spec.Volumes[same].Secret
			for _, item := range v.Secret.Items {
				if !slices.Contains(s.Items, item) {
					s.Items = append(s.Items, item)
				}
			}
			continue
		}
		b.addVolume(v)
	}
	*c = b.own(*c)
	return nil
}

// own sets our image on a container, and the settings of the executor.
func (b *builder) own(c corev1.Container) corev1.Container {
	c.Image, c.ImagePullPolicy = b.options.Image, b.options.ImagePullPolicy
	if e := b.options.Executor; e != nil {
		c.ImagePullPolicy = cmp.Or(e.ImagePullPolicy, c.ImagePullPolicy)
		c.Resources, c.SecurityContext = *e.Resources.DeepCopy(), e.SecurityContext.DeepCopy()
		c.Env = append(slices.Clone(e.Env), c.Env...)
	}
	return c
}
