package artifacts

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/sse"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// s3Bucket is a bucket of S3, or of a server that has its API.
type s3Bucket struct {
	at     *execapi.S3
	client *minio.Client
	// secret is the key that requests bring, with which the store encrypts objects; "": none.
	secret string
}

func openS3(at *execapi.S3) (*s3Bucket, error) {
	creds, err := s3Credentials(at)
	if err != nil {
		return nil, err
	}
	options := &minio.Options{Creds: creds, Secure: !at.Insecure, Region: at.Region}
	if at.CA != "" {
		pem, err := secrets(at.CA)
		if err != nil {
			return nil, err
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM([]byte(pem[0])) {
			return nil, errors.New("s3.caSecret: no certificate")
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		options.Transport = transport
	}
	switch {
	case at.BucketInHost:
		options.BucketLookup = minio.BucketLookupDNS
	case at.BucketInPath:
		options.BucketLookup = minio.BucketLookupPath
	}
	client, err := minio.New(at.Endpoint, options)
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	s := &s3Bucket{at: at, client: client}
	if e := at.Encryption; e != nil && e.CustomerKey != "" {
		key, err := secrets(e.CustomerKey)
		if err != nil {
			return nil, err
		}
		s.secret = key[0]
	}
	return s, nil
}

// sealed returns the encryption with which an object is stored; nil: none.
func (s *s3Bucket) sealed(key string) (encrypt.ServerSide, error) {
	e := s.at.Encryption
	switch {
	case e == nil:
		return nil, nil
	case e.KMSKey != "":
		var context any // an empty map would be sent as a context
		if len(e.KMSContext) > 0 {
			context = e.KMSContext
		}
		return encrypt.NewSSEKMS(e.KMSKey, context)
	case s.secret != "":
		return s.opened(key), nil
	}
	return encrypt.NewSSE(), nil
}

// opened returns the encryption that requests for a stored object have to name: only a key that
// requests bring. The object's key is derived from it, as Argo does.
func (s *s3Bucket) opened(key string) encrypt.ServerSide {
	if s.secret == "" {
		return nil
	}
	return encrypt.DefaultPBKDF([]byte(s.secret), []byte(s.at.Bucket+key))
}

// ready creates the bucket if it does not exist and the location says so.
func (s *s3Bucket) ready(ctx context.Context) error {
	if !s.at.CreateBucket {
		return nil
	}
	found, err := s.client.BucketExists(ctx, s.at.Bucket)
	if err != nil || found {
		return err
	}
	err = s.client.MakeBucket(ctx, s.at.Bucket, minio.MakeBucketOptions{Region: s.at.Region, ObjectLocking: s.at.LockObjects})
	if code := minio.ToErrorResponse(err).Code; code == "BucketAlreadyOwnedByYou" || code == "BucketAlreadyExists" {
		return nil // another pod created it
	}
	e := s.at.Encryption
	if err != nil || e == nil || e.CustomerKey != "" {
		return err
	}
	config := sse.NewConfigurationSSES3()
	if e.KMSKey != "" {
		config = sse.NewConfigurationSSEKMS(e.KMSKey)
	}
	return s.client.SetBucketEncryption(ctx, s.at.Bucket, config)
}

func s3Credentials(at *execapi.S3) (*credentials.Credentials, error) {
	keys, err := secrets(at.AccessKey, at.SecretKey, at.SessionToken)
	if err != nil {
		return nil, err
	}
	own := credentials.NewStaticV4(keys[0], keys[1], keys[2])
	if keys[0] == "" && (at.FromMachine || at.RoleARN != "") {
		own = machineCredentials(at.Region)
	}
	if at.RoleARN == "" {
		return own, nil // no credentials at all: a public bucket
	}
	endpoint, region := stsEndpoint(at.Region), cmp.Or(at.Region, "us-east-1")
	return credentials.New(&s3Role{credentials.STSAssumeRole{STSEndpoint: endpoint, Options: credentials.STSAssumeRoleOptions{
		Location: region, RoleARN: at.RoleARN, RoleSessionName: cmp.Or(os.Getenv("AWS_ROLE_SESSION_NAME"), "lockstep"),
	}}, own}), nil
}

// stsEndpointEnv is the environment variable with the address of the service that hands out roles.
const stsEndpointEnv = "AWS_ENDPOINT_URL_STS"

func stsEndpoint(region string) string {
	switch {
	case os.Getenv(stsEndpointEnv) != "":
		return os.Getenv(stsEndpointEnv)
	case region == "":
		return credentials.DefaultSTSRoleEndpoint
	case strings.HasPrefix(region, "cn-"):
		return "https://sts." + region + ".amazonaws.com.cn"
	}
	return "https://sts." + region + ".amazonaws.com"
}

// machineCredentials returns the credentials of the environment or, if it has none, of the pod's
// service account (a web identity token), of the container or of the machine.
func machineCredentials(region string) *credentials.Credentials {
	if os.Getenv("AWS_ACCESS_KEY_ID") != "" || os.Getenv("AWS_ACCESS_KEY") != "" {
		return credentials.NewEnvAWS()
	}
	machine := &credentials.IAM{Region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), region)}
	if os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		machine.Endpoint = stsEndpoint(machine.Region)
	}
	return credentials.New(machine)
}

// s3Role gets the credentials of a role with those of who may assume it.
type s3Role struct {
	credentials.STSAssumeRole
	own *credentials.Credentials
}

func (r *s3Role) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	own, err := r.own.GetWithContext(c)
	if err != nil {
		return own, err
	}
	r.Options.AccessKey, r.Options.SecretKey, r.Options.SessionToken = own.AccessKeyID, own.SecretAccessKey, own.SessionToken
	role, err := r.STSAssumeRole.RetrieveWithCredContext(c)
	if err != nil {
		return role, fmt.Errorf("s3.roleARN: %w", err)
	}
	return role, nil
}

func (r *s3Role) Retrieve() (credentials.Value, error) { return r.RetrieveWithCredContext(nil) }

func (s *s3Bucket) shown(key string) string {
	return fmt.Sprintf("s3://%s/%s at %s", s.at.Bucket, key, s.at.Endpoint)
}

// told returns an error of the server. It wraps os.ErrNotExist if the object is missing.
func (s *s3Bucket) told(err error) error {
	if r := minio.ToErrorResponse(err); r.Code == "NoSuchKey" || r.StatusCode == http.StatusNotFound && r.Code != "NoSuchBucket" {
		return fmt.Errorf("%w: %w", os.ErrNotExist, err)
	}
	return err
}

func (s *s3Bucket) get(ctx context.Context, key, file string) error {
	return s.told(s.client.FGetObject(ctx, s.at.Bucket, key, file, minio.GetObjectOptions{ServerSideEncryption: s.opened(key)}))
}

func (s *s3Bucket) put(ctx context.Context, key string, f *os.File, size int64) error {
	seal, err := s.sealed(key)
	if err == nil {
		_, err = s.client.PutObject(ctx, s.at.Bucket, key, f, size, minio.PutObjectOptions{ServerSideEncryption: seal})
	}
	return err
}

func (s *s3Bucket) list(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for object := range s.client.ListObjectsIter(ctx, s.at.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
			if !yield(object.Key, object.Err) || object.Err != nil {
				return
			}
		}
	}
}

func (s *s3Bucket) drop(ctx context.Context, key string) error {
	return s.told(s.client.RemoveObject(ctx, s.at.Bucket, key, minio.RemoveObjectOptions{}))
}
