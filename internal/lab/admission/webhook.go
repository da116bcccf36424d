package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

const (
	validatePath = "/validate"
	mutatePath   = "/mutate"
	// reviewMax bounds the body of a review.
	reviewMax = 4 << 20
	// certificateLife is longer than any measurement.
	certificateLife = 30 * 24 * time.Hour
)

// Ready is the line that Serve writes when the server calls its webhooks.
const Ready = "webhooks configured"

// annotation is what the mutating webhook adds to each pod.
const annotation = "lab.lockstep.dev/admitted"

// Serve listens on an address of this machine and is the webhook for all pods of a cluster, until ctx
// is done. It writes Ready to log when the configurations exist.
func Serve(ctx context.Context, cfg *rest.Config, address string, a Admission, log io.Writer) error {
	certificate, ca, err := newCertificate()
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"},
		MinVersion: tls.VersionTLS13})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(a.Work), ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := configure(ctx, cfg, listener.Addr().String(), ca, a.Timeout); err != nil {
		return errors.Join(err, server.Close())
	}
	fmt.Fprintln(log, Ready)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// handler answers reviews, each after the CPU time of work.
func handler(work time.Duration) http.Handler {
	mux := http.NewServeMux()
	for path, review := range map[string]func(*corev1.Pod, *admissionv1.AdmissionResponse) error{validatePath: validate, mutatePath: mutate} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var in admissionv1.AdmissionReview
			err := json.NewDecoder(io.LimitReader(r.Body, reviewMax)).Decode(&in)
			if err != nil || in.Request == nil {
				http.Error(w, fmt.Sprintf("no review: %v", err), http.StatusBadRequest)
				return
			}
			var pod corev1.Pod
			if err := json.Unmarshal(in.Request.Object.Raw, &pod); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if err := burn(r.Context(), work); err != nil {
				return // the server does not wait any more
			}
			out := &admissionv1.AdmissionReview{TypeMeta: in.TypeMeta, Response: &admissionv1.AdmissionResponse{UID: in.Request.UID, Allowed: true}}
			if err := review(&pod, out.Response); err != nil {
				out.Response.Allowed, out.Response.Result = false, &metav1.Status{Message: err.Error(), Code: http.StatusForbidden}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out) // the server may have gone
		})
	}
	return mux
}

// validate checks what the CEL rules check.
func validate(pod *corev1.Pod, _ *admissionv1.AdmissionResponse) error {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if _, ok := c.Resources.Requests[corev1.ResourceCPU]; !ok {
			return errors.New("a container requests no cpu")
		}
		if strings.HasSuffix(c.Image, ":latest") {
			return errors.New("an image has the tag latest")
		}
	}
	if pod.Spec.HostNetwork {
		return errors.New("the pod uses the host's network")
	}
	return nil
}

// mutate adds an annotation.
func mutate(pod *corev1.Pod, r *admissionv1.AdmissionResponse) error {
	annotations := map[string]string{annotation: "true"}
	for k, v := range pod.Annotations {
		annotations[k] = v
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/metadata/annotations", "value": annotations}})
	if err != nil {
		return err
	}
	r.Patch, r.PatchType = patch, ptr.To(admissionv1.PatchTypeJSONPatch)
	return nil
}

// burn computes until this thread has used CPU time, or until ctx is done. A webhook that computes is
// slower when the machine is overloaded, and one that sleeps is not.
func burn(ctx context.Context, work time.Duration) error {
	if work <= 0 {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := threadCPU()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(nil)
	for ctx.Err() == nil {
		for range 100 {
			sum = sha256.Sum256(sum[:])
		}
		used, err := threadCPU()
		if err != nil || used-began >= work {
			return err
		}
	}
	return ctx.Err()
}

func threadCPU() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// newCertificate returns a certificate for addresses of this machine, which is its own authority.
func newCertificate() (c tls.Certificate, ca []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: objectName}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(certificateLife), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, nil, err
	}
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}
