package pods

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	dirVolume   = "var-run-argo"
	imageVolume = "lockstep-image"
	// InitContainer installs lockstep-exec and fetches input artifacts; WaitContainer uploads
	// output artifacts.
	InitContainer = "init"
	WaitContainer = "wait"
	// progressEnv is the environment variable with the path of the file that a program may write
	// its progress to.
	progressEnv = "ARGO_PROGRESS_FILE"
)

// wrap wraps in lockstep-exec the commands that need it and those that benefit from it.
func (b *builder) wrap() error {
	for i := range b.mains {
		c := &b.mains[i]
		plan, err := b.plan(c)
		if err == nil && plan != nil {
			err = b.wrapContainer(c, plan)
		}
		if err != nil {
			return err
		}
	}
	for i := range b.sidecars {
		// As the first process of its container, a command without a handler for SIGTERM ignores
		// the signal, and the pod would wait half a minute for the kubelet to kill it.
		if c := &b.sidecars[i]; len(c.Command) > 0 {
			if err := b.wrapContainer(c, &execapi.Plan{Container: c.Name}); err != nil {
				return err
			}
		}
	}
	return nil
}

// plan returns the plan of lockstep-exec for a main container, or nil if the container needs none.
func (b *builder) plan(c *corev1.Container) (*execapi.Plan, error) {
	if b.ours() {
		return nil, nil
	}
	p := &execapi.Plan{Container: c.Name, Message: c.TerminationMessagePath, MaxMessage: b.maxMessage(len(b.mains))}
	p.Save, p.Logs = b.moves.saves[c.Name], b.moves.logs[c.Name]
	needed := len(p.Save) > 0
	if len(b.moves.upload) > 0 {
		p.Announce, p.GraceSeconds = needed, commandGraceSeconds
	}
	if c.Name == MainContainer {
		p.Result = b.create.IncludeResult
		if b.create.Outputs != nil {
			for _, o := range b.create.Outputs.Parameters {
				if o.ValueFrom == nil || o.ValueFrom.Path == "" {
					continue
				}
				out := execapi.Parameter{Name: o.Name, Path: o.ValueFrom.Path}
				if d := o.ValueFrom.Default; d != nil {
					out.Default = ptr.To(string(*d))
				}
				p.Parameters = append(p.Parameters, out)
			}
		}
		if mentions(c, progressEnv) || b.t.Script != nil && strings.Contains(b.t.Script.Source, progressEnv) {
			p.Progress = execapi.ProgressFile
		}
		needed = needed || p.Result || len(p.Parameters) > 0 || p.Progress != ""
		if needed {
			p.Task = b.task()
		}
	}
	if set := b.t.ContainerSet; set != nil {
		ordered, err := b.order(p, set)
		if err != nil {
			return nil, err
		}
		needed = needed || ordered
	}
	// With a deadline, or with work to do after a signal, a first process that forwards signals is
	// useful.
	if !needed && (b.pod.Spec.ActiveDeadlineSeconds == nil && p.GraceSeconds == 0 || len(c.Command) == 0) {
		return nil, nil
	}
	return p, nil
}

// task returns the identity of the node's WorkflowTaskResult.
func (b *builder) task() *execapi.Task {
	return &execapi.Task{Name: b.create.NodeID, Workflow: b.workflow.Name, WorkflowUID: string(b.workflow.UID)}
}

// order sets the container's dependencies and retries in p. It reports whether the container needs
// lockstep-exec for them.
func (b *builder) order(p *execapi.Plan, set *wf.ContainerSetTemplate) (bool, error) {
	for _, n := range set.Containers {
		if n.Name == p.Container {
			p.After = n.Dependencies
		}
		p.Announce = p.Announce || slices.Contains(n.Dependencies, p.Container)
	}
	if r := set.RetryStrategy; r != nil && r.Retries != nil {
		retries, err := wholeNumber(*r.Retries)
		if err != nil || retries < 0 {
			return false, fmt.Errorf("containerSet.retryStrategy.retries: '%s' is not a number", r.Retries.String())
		}
		p.Retries, p.RetryDelay = int(retries), r.Duration
	}
	return len(p.After) > 0 || p.Announce || p.Retries > 0, nil
}

// maxMessage returns the maximum size of a container's termination message in bytes.
func (b *builder) maxMessage(mains int) int {
	containers := mains + len(b.t.InitContainers) + len(b.t.Sidecars) + 2 // init and wait
	return min(execapi.MaxMessage, execapi.MaxMessages/containers)
}

// mentions reports whether a container's command or environment contains text.
func mentions(c *corev1.Container, text string) bool {
	has := func(s string) bool { return strings.Contains(s, text) }
	return slices.ContainsFunc(c.Command, has) || slices.ContainsFunc(c.Args, has) ||
		slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return has(e.Value) })
}

func (b *builder) wrapContainer(c *corev1.Container, plan *execapi.Plan) error {
	if len(c.Command) == 0 {
		e, found := b.options.entrypoint(c.Image)
		if !found {
			return &NoCommandError{Container: c.Name, Image: c.Image}
		}
		c.Command = e.Command
		if len(c.Args) == 0 {
			c.Args = e.Args
		}
		if len(c.Command) == 0 {
			c.Command, c.Args = c.Args[:1:1], c.Args[1:]
		}
	}
	text, err := execapi.Encode(plan)
	if err != nil {
		return fmt.Errorf("container %s: %w", c.Name, err)
	}
	exec := execapi.StagedExec
	b.staged = !b.options.ImageVolumes
	if b.options.ImageVolumes {
		exec = execapi.ImageExec
		b.addVolume(corev1.Volume{Name: imageVolume, VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: b.options.Image, PullPolicy: b.options.ImagePullPolicy},
		}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: imageVolume, MountPath: execapi.ImageDir, ReadOnly: true})
	}
	c.Command = append([]string{exec, "run", "--"}, c.Command...)
	c.Env = append(c.Env, corev1.EnvVar{Name: execapi.PlanEnv, Value: text})
	if plan.Progress != "" {
		c.Env = append(c.Env, corev1.EnvVar{Name: progressEnv, Value: plan.Progress})
	}
	if b.staged || len(plan.After) > 0 || plan.Announce || plan.Progress != "" || plan.Logs != "" || len(plan.Save) > 0 {
		b.share()
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: dirVolume, MountPath: execapi.Dir})
	}
	return nil
}

// share adds the volume that the pod's containers share.
func (b *builder) share() {
	b.addVolume(corev1.Volume{Name: dirVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}
