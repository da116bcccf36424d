package artifacts

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// azureContainer is a container of Azure Blob Storage.
type azureContainer struct {
	client *container.Client
	at     *execapi.Azure
}

func openAzure(at *execapi.Azure) (*azureContainer, error) {
	endpoint, err := url.Parse(strings.TrimSuffix(at.Endpoint, "/"))
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("azure.endpoint: '%s' is not the address of a server", at.Endpoint)
	}
	address := endpoint.JoinPath(at.Container)
	c := &azureContainer{at: at}
	if at.FromMachine {
		identity, err := azidentity.NewDefaultAzureCredential(nil)
		if err == nil {
			c.client, err = container.NewClient(address.String(), identity, nil)
		}
		return c, err
	}
	keys, err := secrets(at.AccountKey)
	if err != nil {
		return nil, err
	}
	switch key := keys[0]; {
	case key == "": // a public container
		c.client, err = container.NewClientWithNoCredential(address.String(), nil)
	case strings.Contains(key, "sig="): // never in a key, which is in base64
		address.RawQuery = strings.TrimPrefix(key, "?")
		c.client, err = container.NewClientWithNoCredential(address.String(), nil)
	default:
		var credential *container.SharedKeyCredential
		if credential, err = container.NewSharedKeyCredential(azureAccount(endpoint), key); err != nil {
			return nil, errors.New("azure.accountKeySecret: is neither an account's key nor a shared access signature")
		}
		c.client, err = container.NewClientWithSharedKeyCredential(address.String(), credential, nil)
	}
	return c, withoutURL(err)
}

// azureAccount returns the name of the account: the first label of the host or, where the endpoint
// has a path as that of an emulator has, the first part of the path.
func azureAccount(endpoint *url.URL) string {
	if first, _, _ := strings.Cut(strings.Trim(endpoint.Path, "/"), "/"); first != "" {
		return first
	}
	host := endpoint.Hostname()
	if net.ParseIP(host) != nil {
		return ""
	}
	account, _, _ := strings.Cut(host, ".")
	return account
}

func (c *azureContainer) shown(key string) string {
	return fmt.Sprintf("%s/%s/%s", strings.TrimSuffix(c.at.Endpoint, "/"), c.at.Container, key)
}

// told returns an error of the server in one line. It wraps os.ErrNotExist if the blob is missing.
func (c *azureContainer) told(err error) error {
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return withoutURL(err)
	}
	short := fmt.Errorf("%d %s", answer.StatusCode, answer.ErrorCode)
	if answer.StatusCode == http.StatusNotFound && answer.ErrorCode != string(bloberror.ContainerNotFound) {
		return fmt.Errorf("%w: %w", os.ErrNotExist, short)
	}
	return short
}

// withoutURL drops the URL from an error, because it may have a signature.
func withoutURL(err error) error {
	var address *url.Error
	for errors.As(err, &address) {
		err = address.Err
	}
	return err
}

func (c *azureContainer) ready(context.Context) error { return nil }

func (c *azureContainer) get(ctx context.Context, key, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = c.client.NewBlobClient(key).DownloadFile(ctx, f, nil)
	if err = errors.Join(c.told(err), f.Close()); err != nil {
		os.Remove(file)
	}
	return err
}

func (c *azureContainer) put(ctx context.Context, key string, f *os.File, _ int64) error {
	_, err := c.client.NewBlockBlobClient(key).UploadFile(ctx, f, nil)
	return c.told(err)
}

func (c *azureContainer) list(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		pages := c.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: &prefix})
		for pages.More() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield("", c.told(err))
				return
			}
			for _, blob := range page.Segment.BlobItems {
				if !yield(*blob.Name, nil) {
					return
				}
			}
		}
	}
}

func (c *azureContainer) drop(ctx context.Context, key string) error {
	_, err := c.client.NewBlobClient(key).Delete(ctx, nil)
	return c.told(err)
}
