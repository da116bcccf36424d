package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.dev/lockstep/internal/localcluster"
)

// checkCopy returns an error if writeKubeconfigs would overwrite a kubeconfig that contains other
// clusters.
func checkCopy(spec Spec) error {
	if spec.Kubeconfig == "" {
		return nil
	}
	kc, err := clientcmd.LoadFromFile(spec.Kubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if !onlyHas(kc, localcluster.ContextName(spec.Name)) {
		return fmt.Errorf("--kubeconfig: %s holds other clusters and would be overwritten; name another file, or use "+
			"--merge-kubeconfig", spec.Kubeconfig)
	}
	return nil
}

func onlyHas(kc *clientcmdapi.Config, context string) bool {
	for name := range kc.Contexts {
		if name != context {
			return false
		}
	}
	return true
}

// writeKubeconfigs writes the administrator's kubeconfig to Spec.Kubeconfig, and adds it to
// Spec.MergeInto.
func (s *supervisor) writeKubeconfigs() error {
	own, err := os.ReadFile(s.state.Kubeconfig)
	if err != nil {
		return err
	}
	if to := s.spec.Kubeconfig; to != "" {
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
		// An existing file would keep its mode.
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
		if err := os.WriteFile(to, own, 0o600); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
		s.lock.Lock()
		s.state.Copies = []string{to}
		s.lock.Unlock()
	}
	if into := s.spec.MergeInto; into != "" {
		if err := merge(into, own); err != nil {
			return fmt.Errorf("--merge-kubeconfig: %w", err)
		}
		s.lock.Lock()
		s.state.Merged = into
		s.lock.Unlock()
	}
	return nil
}

// merge adds the entries of own to the kubeconfig at path. It sets the current context only if
// there is none.
func merge(path string, own []byte) error {
	add, err := clientcmd.Load(own)
	if err != nil {
		return err
	}
	kc, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		kc, err = clientcmdapi.NewConfig(), nil
	}
	if err != nil {
		return err
	}
	name := add.CurrentContext
	kc.Clusters[name], kc.AuthInfos[name], kc.Contexts[name] = add.Clusters[name], add.AuthInfos[name], add.Contexts[name]
	if kc.CurrentContext == "" {
		kc.CurrentContext = name
	}
	return clientcmd.WriteToFile(*kc, path)
}

// removeKubeconfigs undoes writeKubeconfigs, except for a copy that now contains other clusters.
func removeKubeconfigs(state *State) error {
	name := localcluster.ContextName(state.Name)
	for _, path := range state.Copies {
		if kc, err := clientcmd.LoadFromFile(path); err == nil && onlyHas(kc, name) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	if state.Merged == "" {
		return nil
	}
	kc, err := clientcmd.LoadFromFile(state.Merged)
	if err != nil {
		return nil // the user has removed the file
	}
	delete(kc.Clusters, name)
	delete(kc.AuthInfos, name)
	delete(kc.Contexts, name)
	if kc.CurrentContext == name {
		kc.CurrentContext = ""
	}
	return clientcmd.WriteToFile(*kc, state.Merged)
}
