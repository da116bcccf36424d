package stores

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// TestS3 uses MinIO, with TLS and a KMS: buckets that are created, and objects that the store
// encrypts with its own key, a key of the KMS, and one that requests bring.
func TestS3(t *testing.T) {
	server := fetched(t, "minio")
	dir := t.TempDir()
	for from, to := range map[string]string{certFile: "public.crt", keyFile: "private.key"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		file(t, string(text), dir, "certs", to)
	}
	t.Setenv("MINIO_ROOT_USER", "someone")
	t.Setenv("MINIO_ROOT_PASSWORD", "s3cret-s3cret")
	t.Setenv("MINIO_KMS_SECRET_KEY", "artifacts:MzIgYnl0ZXMgYXJlIHRoZSBrZXkgb2YgdGhlIGtleXM=")
	port := ports(t, 1)[0]
	address := fmt.Sprintf("127.0.0.1:%d", port)
	start(t, port, server, "server", filepath.Join(dir, "data"), "--address", address, "--certs-dir", filepath.Join(dir, "certs"))
	access, secret := file(t, "someone", dir, "access"), file(t, "s3cret-s3cret", dir, "secret")
	customer := file(t, "0123456789abcdef0123456789abcdef", dir, "customer")
	for bucket, encryption := range map[string]*execapi.S3Encryption{
		"plain": nil, "own": {}, "kms": {KMSKey: "artifacts", KMSContext: map[string]string{"a": "b"}}, "customer": {CustomerKey: customer},
	} {
		t.Run(bucket, func(t *testing.T) {
			roundTrips(t, func(key string) execapi.Location {
				return execapi.Location{S3: &execapi.S3{
					Endpoint: address, Bucket: bucket, Key: key, AccessKey: access, SecretKey: secret, CA: certFile,
					CreateBucket: true, Encryption: encryption,
				}}
			})
		})
	}
}
