package artifacts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/sse"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// s3Store keeps an artifact as one object, or as all objects below a key.
type s3Store struct {
	at     *execapi.S3
	client *minio.Client
	// secret is the key that requests bring, with which the store encrypts objects; "": none.
	secret string
}

func openS3(at *execapi.S3) (*s3Store, error) {
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
	s := &s3Store{at: at, client: client}
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
func (s *s3Store) sealed(key string) (encrypt.ServerSide, error) {
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
func (s *s3Store) opened(key string) encrypt.ServerSide {
	if s.secret == "" {
		return nil
	}
	return encrypt.DefaultPBKDF([]byte(s.secret), []byte(s.at.Bucket+key))
}

// ensureBucket creates the bucket if it does not exist and the location says so.
func (s *s3Store) ensureBucket(ctx context.Context) error {
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
	access, key, token := keys[0], keys[1], keys[2]
	switch {
	case at.RoleARN != "" && access != "":
		return credentials.NewSTSAssumeRole("https://sts.amazonaws.com", credentials.STSAssumeRoleOptions{
			AccessKey: access, SecretKey: key, SessionToken: token, Location: at.Region, RoleARN: at.RoleARN, RoleSessionName: "lockstep",
		})
	case access != "":
		return credentials.NewStaticV4(access, key, token), nil
	case at.FromMachine || at.RoleARN != "":
		// First the environment, then the cloud's credentials for the service account or machine.
		return credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.IAM{}}), nil
	}
	return credentials.NewStaticV4("", "", ""), nil // a public bucket
}

// wrap adds the name of the object to an error.
func (s *s3Store) wrap(err error) error {
	if err == nil {
		return nil
	}
	if r := minio.ToErrorResponse(err); r.Code == "NoSuchKey" || r.StatusCode == http.StatusNotFound && r.Code != "NoSuchBucket" {
		err = fmt.Errorf("%w: %w", os.ErrNotExist, err)
	}
	return fmt.Errorf("s3://%s/%s at %s: %w", s.at.Bucket, s.at.Key, s.at.Endpoint, err)
}

func (s *s3Store) load(ctx context.Context, to string) error {
	options := minio.GetObjectOptions{ServerSideEncryption: s.opened(s.at.Key)}
	_, err := s.client.StatObject(ctx, s.at.Bucket, s.at.Key, options)
	if err == nil {
		return s.wrap(s.client.FGetObject(ctx, s.at.Bucket, s.at.Key, to, options))
	}
	if wrapped := s.wrap(err); !errors.Is(wrapped, os.ErrNotExist) {
		return wrapped
	}
	prefix, found := s.prefix(), false
	for object := range s.client.ListObjects(ctx, s.at.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if object.Err != nil {
			return s.wrap(object.Err)
		}
		rel := strings.TrimPrefix(object.Key, prefix)
		if rel == "" || strings.HasSuffix(rel, "/") { // a marker of an empty directory
			found = true
			if err := os.MkdirAll(to, 0o777); err != nil {
				return err
			}
			continue
		}
		if !filepath.IsLocal(rel) {
			return s.wrap(fmt.Errorf("key '%s' leads out of the directory", object.Key))
		}
		found = true
		options := minio.GetObjectOptions{ServerSideEncryption: s.opened(object.Key)}
		if err := s.client.FGetObject(ctx, s.at.Bucket, object.Key, filepath.Join(to, rel), options); err != nil {
			return s.wrap(err)
		}
	}
	if !found {
		return s.wrap(err)
	}
	return nil
}

// prefix returns the key prefix of the objects of a directory.
func (s *s3Store) prefix() string { return strings.TrimSuffix(s.at.Key, "/") + "/" }

func (s *s3Store) save(ctx context.Context, from source) error {
	if err := s.ensureBucket(ctx); err != nil {
		return s.wrap(err)
	}
	return s.wrap(from.files(func(rel string, f *os.File, size int64) error {
		key := s.at.Key
		if rel != "" {
			key = path.Join(key, rel)
		}
		seal, err := s.sealed(key)
		if err == nil {
			_, err = s.client.PutObject(ctx, s.at.Bucket, key, f, size, minio.PutObjectOptions{ServerSideEncryption: seal})
		}
		return err
	}))
}

func (s *s3Store) remove(ctx context.Context) error {
	if err := s.client.RemoveObject(ctx, s.at.Bucket, s.at.Key, minio.RemoveObjectOptions{}); err != nil {
		if wrapped := s.wrap(err); !errors.Is(wrapped, os.ErrNotExist) {
			return wrapped
		}
	}
	for object := range s.client.ListObjects(ctx, s.at.Bucket, minio.ListObjectsOptions{Prefix: s.prefix(), Recursive: true}) {
		if object.Err != nil {
			return s.wrap(object.Err)
		}
		if err := s.client.RemoveObject(ctx, s.at.Bucket, object.Key, minio.RemoveObjectOptions{}); err != nil {
			return s.wrap(err)
		}
	}
	return nil
}
