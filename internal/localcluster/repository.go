package localcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// systemNamespace is the namespace with the artifact repository for namespaces that have none of
// their own.
const systemNamespace = "lockstep-system"

// ShareArtifacts configures an artifact repository for the workflows of the cluster in dir: a
// directory of the machine, which all real nodes share. It leaves an existing repository unchanged.
func ShareArtifacts(ctx context.Context, cfg *rest.Config, dir string) error {
	shared := filepath.Join(dir, "artifacts")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return err
	}
	// Containers run as any user; as in /tmp, no user may remove the files of another.
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(systemNamespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: wf.RepositoriesConfigMap,
			Annotations: map[string]string{wf.AnnotationDefaultRepository: "shared"}},
		Data: map[string]string{
			"shared": fmt.Sprintf(
				"volume: {hostPath: %q, keyFormat: \"{{workflow.namespace}}/{{workflow.name}}/{{pod.name}}\"}\n", shared),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("artifact repository: %w", err)
	}
	return nil
}
