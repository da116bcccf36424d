package applications

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// podChoice holds the flags that choose pods of an application.
type podChoice struct{ component, pod, container string }

func (p *podChoice) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&p.component, "component", "c", "", "only pods of this component")
	f.StringVar(&p.pod, "pod", "", "only this pod")
	f.StringVar(&p.container, "container", "", "container of the pods; the first one by default")
}

// pods returns the chosen pods of an application. It fails if no pod is chosen.
func (p *podChoice) pods(ctx context.Context, client *applications.Client,
	namespace, name string) ([]corev1.Pod, error) {
	app, err := client.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	all, err := client.Pods(ctx, app, p.component)
	if err != nil {
		return nil, err
	}
	chosen := p.pod // or pod/NAME, as kubectl prints it
	if kind, name, ok := strings.Cut(p.pod, "/"); ok && names.Pod.Has(kind) {
		chosen = name
	}
	var out []corev1.Pod
	for _, pod := range all {
		if chosen == "" || pod.Name == chosen {
			out = append(out, pod)
		}
	}
	switch {
	case len(out) > 0:
		return out, nil
	case p.pod != "":
		return nil, fmt.Errorf("application %s has no pod %s: see lockstep app status %s --pod", name, p.pod, name)
	}
	return nil, fmt.Errorf("application %s has no pods now; it is %s: see lockstep app status %s", name,
		app.Status.Phase, name)
}

// one returns the first chosen pod that runs. It fails if none runs.
func (p *podChoice) one(ctx context.Context, client *applications.Client, namespace, name string) (*corev1.Pod, error) {
	pods, err := p.pods(ctx, client, namespace, name)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodRunning && pods[i].DeletionTimestamp == nil {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("no pod of application %s runs now; %s is %s", name, pods[0].Name, pods[0].Status.Phase)
}
