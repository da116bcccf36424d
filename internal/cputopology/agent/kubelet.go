package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/agent/kubelet"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

// kubeletState is what the agent has last read of the kubelet's files.
type kubeletState struct {
	desired.Kubelet // from the checkpoint of its CPU manager
	config          kubelet.Config

	checkpointSeen, configSeen fileVersion
}

// fileVersion tells versions of a file apart; the zero value is a file that does not exist.
type fileVersion struct {
	modified time.Time
	size     int64
}

func versionOf(path string) (fileVersion, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fileVersion{}, nil
	}
	if err != nil {
		return fileVersion{}, err
	}
	return fileVersion{info.ModTime(), info.Size()}, nil
}

// refresh reads the kubelet's files if they have changed.
func (k *kubeletState) refresh(dir string) (changed bool, err error) {
	checkpoint, config := filepath.Join(dir, kubelet.StateFile), filepath.Join(dir, kubelet.ConfigFile)
	for _, f := range []struct {
		path string
		seen *fileVersion
		read func() error
	}{
		{checkpoint, &k.checkpointSeen, func() (err error) { k.Kubelet, err = kubelet.Read(checkpoint); return err }},
		{config, &k.configSeen, func() (err error) { k.config, err = kubelet.ReadConfig(config); return err }},
	} {
		version, err := versionOf(f.path)
		if err != nil {
			return changed, err
		}
		if version.size == f.seen.size && version.modified.Equal(f.seen.modified) {
			continue
		}
		if err := f.read(); err != nil {
			return changed, err
		}
		*f.seen, changed = version, true
	}
	return changed, nil
}

// status returns what the NodeTopology says about the kubelet; nil if nothing is known of it.
func (k *kubeletState) status(takeOver bool) *topologyv1alpha1.KubeletStatus {
	if k.configSeen == (fileVersion{}) && k.checkpointSeen == (fileVersion{}) {
		return nil
	}
	s := &topologyv1alpha1.KubeletStatus{CPUManagerPolicy: "none", TopologyManagerPolicy: k.config.TopologyManagerPolicy}
	if k.Static || k.checkpointSeen == (fileVersion{}) && k.config.CPUManagerPolicy == kubelet.PolicyStatic {
		s.CPUManagerPolicy, s.Pins = kubelet.PolicyStatic, topologyv1alpha1.PinsRespected
		if takeOver && k.config.Refusal() == "" {
			s.Pins = topologyv1alpha1.PinsTakenOver
		}
	}
	for _, option := range slices.Sorted(maps.Keys(k.config.CPUManagerPolicyOptions)) {
		if s.CPUManagerPolicy == kubelet.PolicyStatic && len(s.Options) < optionsMax {
			s.Options = append(s.Options, option+"="+k.config.CPUManagerPolicyOptions[option])
		}
	}
	return s
}

// optionsMax bounds the options in the status.
const optionsMax = 16

// reserve returns the CPUs that are kept for the system: those of the agent's own setting or else the
// kubelet's, and those of the node's annotation. view may be nil.
func (a *Agent) reserve(view *view) (reservation.Reserve, error) {
	out, err := a.kubelet.config.Reserve()
	if err != nil {
		return out, err
	}
	if a.cfg.Reserved != nil {
		out = reservation.Reserve{Named: *a.cfg.Reserved}
	}
	out.Percent = a.cfg.ReservedPercent
	if view == nil {
		return out, nil
	}
	ofNode, err := kubelet.ReserveOfNode(view.annotation(topologyv1alpha1.KoordinatorReservationAnnotation))
	if err != nil {
		// A mistake in an annotation must not stop the agent.
		a.annotationFault = fmt.Sprintf("the node's annotation %s: %v", topologyv1alpha1.KoordinatorReservationAnnotation, err)
		return out, nil
	}
	a.annotationFault = ""
	return out.And(ofNode), nil
}

// pins returns the state of the kubelet's CPU manager as far as it stands: pods with CPUs in their
// annotations are taken over if the agent is told so and the kubelet does not refuse pods.
func (a *Agent) pins(pods []desired.Pod) desired.Kubelet {
	if !a.cfg.TakeOver || !a.kubelet.Static || a.kubelet.config.Refusal() != "" {
		return a.kubelet.Kubelet
	}
	return a.kubelet.TakenOver(pods)
}

// ownProblems returns problems that concern the node and not a pass.
func (a *Agent) ownProblems() []topologyv1alpha1.Problem {
	var out []topologyv1alpha1.Problem
	if a.annotationFault != "" {
		out = append(out, topologyv1alpha1.Problem{Message: a.annotationFault})
	}
	if why := a.kubelet.config.Refusal(); a.cfg.TakeOver && a.kubelet.Static && why != "" {
		out = append(out, topologyv1alpha1.Problem{Message: "the kubelet's pins are not taken over, because it may refuse pods: " + why})
	}
	return out
}
