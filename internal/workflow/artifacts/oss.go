package artifacts

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss"
	"github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss/credentials"
	"github.com/aliyun/credentials-go/credentials/providers"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// ossBucket is a bucket of Alibaba Cloud's Object Storage Service.
type ossBucket struct {
	at     *execapi.OSS
	client *oss.Client
}

// ossRegion matches the hosts of the service's regions, also those within its network.
var ossRegion = regexp.MustCompile(`^(?:[^.]+\.)?oss-([a-z]+-[a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com$`)

func openOSS(at *execapi.OSS) (*ossBucket, error) {
	address := at.Endpoint
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	endpoint, err := url.Parse(address)
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("oss.endpoint: '%s' is not the address of a server", at.Endpoint)
	}
	keys, err := ossCredentials(at)
	if err != nil {
		return nil, err
	}
	config := oss.LoadDefaultConfig().WithEndpoint(address).WithCredentialsProvider(keys).WithProxyFromEnvironment(true)
	if match := ossRegion.FindStringSubmatch(endpoint.Hostname()); match != nil {
		config = config.WithRegion(match[1])
	} else { // later signatures have the region
		config = config.WithSignatureVersion(oss.SignatureVersionV1)
	}
	return &ossBucket{at: at, client: oss.NewClient(config)}, nil
}

func ossCredentials(at *execapi.OSS) (credentials.CredentialsProvider, error) {
	keys, err := secrets(at.AccessKey, at.SecretKey)
	if err != nil {
		return nil, err
	}
	switch {
	case at.FromMachine:
		// The environment, the token of the pod's service account, a profile, the machine's role.
		found := providers.NewDefaultCredentialsProvider()
		return credentials.CredentialsProviderFunc(func(context.Context) (credentials.Credentials, error) {
			now, err := found.GetCredentials()
			if err != nil {
				return credentials.Credentials{}, fmt.Errorf("oss.useSDKCreds: %w", withoutURL(err))
			}
			return credentials.Credentials{AccessKeyID: now.AccessKeyId, AccessKeySecret: now.AccessKeySecret, SecurityToken: now.SecurityToken}, nil
		}), nil
	case keys[0] != "":
		return credentials.NewStaticCredentialsProvider(keys[0], keys[1], at.SecurityToken), nil
	}
	return credentials.NewAnonymousCredentialsProvider(), nil // a public bucket
}

func (b *ossBucket) shown(key string) string {
	return fmt.Sprintf("oss://%s/%s at %s", b.at.Bucket, key, b.at.Endpoint)
}

// told returns an error of the server in one line. It wraps os.ErrNotExist if the object is missing.
func (b *ossBucket) told(err error) error {
	var answer *oss.ServiceError
	if !errors.As(err, &answer) {
		return withoutURL(err)
	}
	short := fmt.Errorf("%d %s: %s", answer.StatusCode, answer.Code, answer.Message)
	if answer.StatusCode == http.StatusNotFound && answer.Code != "NoSuchBucket" {
		return fmt.Errorf("%w: %w", os.ErrNotExist, short)
	}
	return short
}

// ready creates the bucket if it does not exist and the location says so.
func (b *ossBucket) ready(ctx context.Context) error {
	if !b.at.CreateBucket {
		return nil
	}
	found, err := b.client.IsBucketExist(ctx, b.at.Bucket)
	if err != nil || found {
		return b.told(err)
	}
	_, err = b.client.PutBucket(ctx, &oss.PutBucketRequest{Bucket: &b.at.Bucket})
	return b.told(err) // it is not an error if another pod created it
}

func (b *ossBucket) get(ctx context.Context, key, file string) error {
	_, err := b.client.NewDownloader().DownloadFile(ctx, &oss.GetObjectRequest{Bucket: &b.at.Bucket, Key: &key}, file)
	return b.told(err)
}

func (b *ossBucket) put(ctx context.Context, key string, f *os.File, _ int64) error {
	_, err := b.client.NewUploader().UploadFrom(ctx, &oss.PutObjectRequest{Bucket: &b.at.Bucket, Key: &key}, f)
	return b.told(err)
}

func (b *ossBucket) list(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		pages := b.client.NewListObjectsV2Paginator(&oss.ListObjectsV2Request{Bucket: &b.at.Bucket, Prefix: &prefix})
		for pages.HasNext() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield("", b.told(err))
				return
			}
			for _, object := range page.Contents {
				if !yield(oss.ToString(object.Key), nil) {
					return
				}
			}
		}
	}
}

func (b *ossBucket) drop(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &oss.DeleteObjectRequest{Bucket: &b.at.Bucket, Key: &key})
	return b.told(err)
}
