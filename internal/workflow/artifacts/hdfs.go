package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/colinmarc/hdfs/v2"
	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	// hdfsTimeout bounds the connection to a name node or data node.
	hdfsTimeout = 30 * time.Second
	// hdfsReplicates bounds the time until the last block of a file has its replicas; hdfsPause is
	// the delay between two looks.
	hdfsReplicates = 2 * time.Minute
	hdfsPause      = 100 * time.Millisecond
)

// hdfsStore keeps an artifact as a file or directory of HDFS.
type hdfsStore struct{ at *execapi.HDFS }

// with calls use with a client, and adds the artifact's address to the error.
func (s hdfsStore) with(ctx context.Context, use func(*hdfs.Client) error) error {
	dial := (&net.Dialer{Timeout: hdfsTimeout}).DialContext
	options := hdfs.ClientOptions{
		Addresses: s.at.Addresses, User: s.at.User, NamenodeDialFunc: dial, DatanodeDialFunc: dial, DataTransferProtection: s.at.Protection,
	}
	err := kerberos(s.at.Kerberos, &options)
	if err == nil {
		var c *hdfs.Client
		if c, err = hdfs.NewClient(options); err == nil {
			defer c.Close()
			// The client's calls have no context: closing the client ends them.
			defer context.AfterFunc(ctx, func() { c.Close() })()
			err = use(c)
		}
	}
	if err != nil {
		return fmt.Errorf("hdfs://%s%s: %w", strings.Join(s.at.Addresses, ","), s.at.Path, errors.Join(err, ctx.Err()))
	}
	return nil
}

// kerberos sets the client's credentials.
func kerberos(k *execapi.Kerberos, to *hdfs.ClientOptions) error {
	if k == nil {
		return nil
	}
	settings, err := config.Load(k.Config)
	if err != nil {
		return fmt.Errorf("krbConfigConfigMap: %w", err)
	}
	to.KerberosServicePrincipleName = k.Service
	if k.Cache != "" {
		cache, err := credentials.LoadCCache(k.Cache)
		if err != nil {
			return fmt.Errorf("krbCCacheSecret: %w", err)
		}
		if to.KerberosClient, err = client.NewFromCCache(cache, settings); err != nil {
			return fmt.Errorf("krbCCacheSecret: %w", err)
		}
		return nil
	}
	keys, err := keytab.Load(k.Keytab)
	if err != nil {
		return fmt.Errorf("krbKeytabSecret: %w", err)
	}
	to.KerberosClient = client.NewWithKeytab(k.User, k.Realm, keys, settings)
	return nil
}

func (s hdfsStore) load(ctx context.Context, to string) error {
	return s.with(ctx, func(c *hdfs.Client) error {
		return c.Walk(s.at.Path, func(name string, info os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(s.at.Path, name)
			if err != nil || rel != "." && !filepath.IsLocal(rel) {
				return fmt.Errorf("'%s' leads out of the directory", name)
			}
			if info.IsDir() {
				return os.MkdirAll(filepath.Join(to, rel), 0o777)
			}
			return hdfsGet(c, name, filepath.Join(to, rel))
		})
	})
}

func hdfsGet(c *hdfs.Client, name, file string) error {
	from, err := c.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

func (s hdfsStore) save(ctx context.Context, from source) error {
	dir, err := from.isDir()
	if err != nil {
		return err
	}
	return s.with(ctx, func(c *hdfs.Client) error {
		if _, err := c.Stat(s.at.Path); err == nil {
			if !s.at.Force {
				return fmt.Errorf("%w, and force is not set", os.ErrExist)
			}
			if err := c.RemoveAll(s.at.Path); err != nil {
				return err
			}
		}
		if dir {
			if err := c.MkdirAll(s.at.Path, 0o755); err != nil {
				return err
			}
		}
		return from.files(func(rel string, f *os.File, _ int64) error {
			return hdfsPut(c, path.Join(s.at.Path, rel), f)
		})
	})
}

func hdfsPut(c *hdfs.Client, name string, f *os.File) error {
	if err := c.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	to, err := c.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, f)
	closing := to.Close()
	for waited := time.Duration(0); hdfs.IsErrReplicating(closing) && waited < hdfsReplicates; waited += hdfsPause {
		time.Sleep(hdfsPause)
		closing = to.Close()
	}
	return errors.Join(err, closing)
}

func (s hdfsStore) remove(ctx context.Context) error {
	if path.Clean("/"+s.at.Path) == "/" {
		return errors.New("hdfs: no path")
	}
	return s.with(ctx, func(c *hdfs.Client) error {
		if err := c.RemoveAll(s.at.Path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})
}

// paths returns the files below the path.
func (s hdfsStore) paths(ctx context.Context) (found []string, err error) {
	err = s.with(ctx, func(c *hdfs.Client) error {
		return c.Walk(s.at.Path, func(name string, info os.FileInfo, err error) error {
			if err == nil && !info.IsDir() {
				found = append(found, name)
			}
			if len(found) > pathsMax {
				return fmt.Errorf("more than %d files", pathsMax)
			}
			return err
		})
	})
	return found, err
}
