package pods

import (
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// File names of the ssh plugin, as ssh and sshd expect them.
const (
	privateKeyFile = "id_rsa"
	publicKeyFile  = "id_rsa.pub"
	authorizedFile = "authorized_keys"
	configFile     = "config"

	rootsKeys = "/root/.ssh"
)

// addSSH lets the pods log in to each other under their own names, with one key pair in a Secret
// that is mounted where ssh looks for it. If the arguments contain no key pair, one is generated
// when the Secret is written: see LacksKeys.
func (s *Set) addSSH(job *batch.Job, args batch.PluginArguments) error {
	var dir, private, public string
	var port int
	err := s.parse(batch.SSHPlugin, args, func(f *flag.FlagSet) {
		f.StringVar(&dir, "ssh-key-file-path", rootsKeys, "")
		f.StringVar(&private, "ssh-private-key", "", "")
		f.StringVar(&public, "ssh-public-key", "", "")
		f.IntVar(&port, "ssh-port", 22, "")
	}, &port)
	if err != nil {
		return err
	}
	if (private == "") != (public == "") {
		return errors.New("spec.plugins.ssh: ssh-private-key and ssh-public-key go together")
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name + "-ssh", OwnerReferences: ownerOf(job)},
		Data:       map[string][]byte{configFile: []byte(s.sshConfig(job, port))},
	}
	if private != "" {
		setKeys(secret, []byte(private), []byte(public))
	}
	if n := len(secret.Data[configFile]); n > configMapBytesMax {
		return fmt.Errorf("spec.plugins.ssh: the names of the job's pods take %d KiB, more than the 1024 KiB that a Secret can hold", n>>10)
	}
	s.objects = append(s.objects, forPlugin(batch.SSHPlugin, secret))

	// The files are in a subfolder of the volume, because sshd rejects a folder that others may
	// write to, as the root of a volume is. The wider mode is for users other than root, who could
	// not read files of mode 0600.
	mode := int32(0o600)
	if dir != rootsKeys {
		mode = 0o644
	}
	const folder = ".ssh"
	var items []corev1.KeyToPath
	for _, file := range []string{privateKeyFile, publicKeyFile, authorizedFile, configFile} {
		items = append(items, corev1.KeyToPath{Key: file, Path: folder + "/" + file})
	}
	for i := range s.tasks {
		spec := &s.tasks[i].base.Spec
		spec.Volumes = append(spec.Volumes[:len(spec.Volumes):len(spec.Volumes)], corev1.Volume{
			Name: secret.Name,
			VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: secret.Name, Items: items, DefaultMode: ptr.To(mode),
			}},
		})
		mount(spec, []corev1.VolumeMount{{Name: secret.Name, MountPath: dir, SubPath: folder}})
	}
	return nil
}

// sshConfig returns an ssh configuration in which every pod of the job has its short name.
func (s *Set) sshConfig(job *batch.Job, port int) string {
	var b strings.Builder
	b.WriteString("StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n")
	if port != 22 {
		fmt.Fprintf(&b, "Port %d\n", port)
	}
	for i := range s.tasks {
		for _, host := range s.tasks[i].hosts(job) {
			short, _, _ := strings.Cut(host, ".")
			fmt.Fprintf(&b, "Host %s\n  HostName %s\n", short, host)
		}
	}
	return b.String()
}

// LacksKeys reports whether the object is the Secret of the ssh plugin and has no keys yet.
func LacksKeys(o Object) bool {
	secret, ok := o.Object.(*corev1.Secret)
	return ok && len(secret.Data[privateKeyFile]) == 0
}

// WithKeys returns a copy of the object with a key pair.
func WithKeys(o Object, private, public []byte) Object {
	secret := o.Object.(*corev1.Secret).DeepCopy()
	setKeys(secret, private, public)
	o.Object = secret
	return o
}

func setKeys(secret *corev1.Secret, private, public []byte) {
	secret.Data[privateKeyFile], secret.Data[publicKeyFile], secret.Data[authorizedFile] = private, public, public
}

// NamesOnly returns the Secret's data without the keys.
func NamesOnly(secret *corev1.Secret) map[string][]byte {
	return map[string][]byte{configFile: secret.Data[configFile]}
}

// Names returns the parts of a plugin's object that contain the names of the job's pods, and
// therefore depend on the job's size, encoded as in JSON. It returns nil for objects without such
// parts.
func Names(o runtime.Object) map[string]string {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		return o.Data
	case *corev1.Secret:
		return map[string]string{configFile: base64.StdEncoding.EncodeToString(o.Data[configFile])}
	}
	return nil
}
