package artifacts

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	gcsScope = "https://www.googleapis.com/auth/devstorage.read_write"
	// gcsEmulatorEnv is the environment variable with the address of a server that has the API of
	// Google Cloud Storage and wants no credentials.
	gcsEmulatorEnv = "STORAGE_EMULATOR_HOST"
	// gcsChunk is the size in bytes of one request of an upload; a multiple of 256 KiB.
	gcsChunk = 16 << 20
)

// gcsBucket is a bucket of Google Cloud Storage. It uses the JSON API.
type gcsBucket struct {
	name   string
	base   string // address of the API, without a slash at the end
	client *http.Client
	pause  time.Duration
	chunk  int64
}

func openGCS(at *execapi.GCS) (*gcsBucket, error) {
	b := &gcsBucket{name: at.Bucket, client: &http.Client{}, pause: httpPause, chunk: gcsChunk}
	if emulator := strings.TrimSuffix(os.Getenv(gcsEmulatorEnv), "/"); emulator != "" {
		if !strings.Contains(emulator, "://") {
			emulator = "http://" + emulator
		}
		b.base = emulator
		return b, nil
	}
	credentials, err := googleCredentials(at.Account)
	if err != nil {
		return nil, err
	}
	universe, err := credentials.GetUniverseDomain()
	if err != nil {
		return nil, fmt.Errorf("gcs: %w", err)
	}
	b.base = "https://storage." + universe
	b.client.Transport = &oauth2.Transport{Source: credentials.TokenSource}
	return b, nil
}

// googleCredentials returns the credentials in a file or, if file is "", those of the environment,
// of the pod's service account (workload identity) or of the machine.
func googleCredentials(file string) (*google.Credentials, error) {
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
	if file == "" {
		found, err := google.FindDefaultCredentials(ctx, gcsScope)
		if err != nil {
			return nil, fmt.Errorf("gcs: there is no serviceAccountKeySecret, and no credentials of pod or machine: %w", err)
		}
		return found, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	var kind struct {
		Type google.CredentialsType `json:"type"`
	}
	if json.Unmarshal(data, &kind) != nil || kind.Type == "" { // the error may have parts of the key
		return nil, errors.New("gcs.serviceAccountKeySecret: is not a key of a service account in JSON")
	}
	found, err := google.CredentialsFromJSONWithType(ctx, data, kind.Type, gcsScope)
	if err != nil {
		return nil, fmt.Errorf("gcs.serviceAccountKeySecret: credentials of type '%s' are not valid", kind.Type)
	}
	return found, nil
}

func (b *gcsBucket) shown(key string) string { return fmt.Sprintf("gs://%s/%s", b.name, key) }

func (b *gcsBucket) ready(context.Context) error { return nil }

// object returns the address of an object, or of all objects if key is "".
func (b *gcsBucket) object(key string) string {
	address := b.base + "/storage/v1/b/" + url.PathEscape(b.name) + "/o"
	if key != "" {
		address += "/" + url.PathEscape(key)
	}
	return address
}

// do sends one request. It returns the response if its status is 2xx or one of accepted, else an
// error, and whether another attempt may succeed.
func (b *gcsBucket) do(request *http.Request, accepted ...int) (response *http.Response, again bool, err error) {
	response, err = b.client.Do(request)
	if err != nil {
		again, err = requestError("gcs", err)
		return nil, again, err
	}
	code := response.StatusCode
	for _, a := range accepted {
		if code == a {
			return response, false, nil
		}
	}
	if code/100 == 2 {
		return response, false, nil
	}
	defer response.Body.Close()
	err = errors.New(response.Status)
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &answer) == nil && answer.Error.Message != "" {
		err = fmt.Errorf("%s: %s", response.Status, clip.Text(answer.Error.Message, 300))
	}
	if code == http.StatusNotFound && !strings.Contains(answer.Error.Message, "bucket does not exist") {
		err = fmt.Errorf("%w: %w", os.ErrNotExist, err)
	}
	return nil, code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500, err
}

func (b *gcsBucket) get(ctx context.Context, key, file string) error {
	return retried(ctx, b.pause, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.object(key)+"?alt=media", nil)
		if err != nil {
			return false, err
		}
		response, again, err := b.do(request)
		if err != nil {
			return again, err
		}
		defer response.Body.Close()
		f, err := os.Create(file)
		if err != nil {
			return false, err
		}
		sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
		_, err = io.Copy(io.MultiWriter(f, sum), response.Body)
		if err = errors.Join(err, f.Close()); err != nil {
			return true, err
		}
		for _, header := range response.Header.Values("X-Goog-Hash") {
			for hash := range strings.SplitSeq(header, ",") {
				want, found := strings.CutPrefix(strings.TrimSpace(hash), "crc32c=")
				if found && !response.Uncompressed && want != encodeSum(sum.Sum32()) {
					return true, errors.New("the content differs from its checksum")
				}
			}
		}
		return false, nil
	})
}

// encodeSum returns a checksum as Google's API writes it.
func encodeSum(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// put uploads a file in chunks, so that a lost connection costs one chunk.
func (b *gcsBucket) put(ctx context.Context, key string, f *os.File, size int64) error {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return err
	}
	session, err := b.begin(ctx, key, encodeSum(sum.Sum32()))
	if err != nil {
		return err
	}
	idle := 0 // rounds in which nothing more arrived
	for stored, done := int64(0), false; !done; {
		ask, before := false, stored
		err := retried(ctx, b.pause, func() (again bool, err error) {
			if stored, done, again, err = b.chunkAt(ctx, session, f, stored, size, ask); err != nil {
				ask = true // whether the chunk arrived
			}
			return again, err
		})
		if err != nil {
			return err
		}
		if idle++; stored > before {
			idle = 0
		}
		if !done && idle == httpAttempts {
			return fmt.Errorf("the server keeps no more than %d of %d bytes", stored, size)
		}
	}
	return nil
}

// begin starts an upload and returns its address. The server checks the content against the sum.
func (b *gcsBucket) begin(ctx context.Context, key, sum string) (session string, err error) {
	body, err := json.Marshal(map[string]string{"name": key, "crc32c": sum})
	if err != nil {
		return "", err
	}
	address := b.base + "/upload/storage/v1/b/" + url.PathEscape(b.name) + "/o?uploadType=resumable&name=" + url.QueryEscape(key)
	return session, retried(ctx, b.pause, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(string(body)))
		if err != nil {
			return false, err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("X-Upload-Content-Type", "application/octet-stream")
		response, again, err := b.do(request)
		if err != nil {
			return again, err
		}
		response.Body.Close()
		if session = response.Header.Get("Location"); session == "" {
			return false, errors.New("the server gave no address for the upload")
		}
		return false, nil
	})
}

// chunkAt sends the chunk of an upload that begins at offset or, if ask is true, only asks how much
// has arrived. It returns the number of bytes that the server has.
func (b *gcsBucket) chunkAt(ctx context.Context, session string, f *os.File, offset, size int64, ask bool) (stored int64, done, again bool, err error) {
	end := min(offset+b.chunk, size)
	what := fmt.Sprintf("bytes %d-%d/%d", offset, end-1, size)
	length := end - offset
	if ask || length == 0 {
		what, length = fmt.Sprintf("bytes */%d", size), 0
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, session, nil)
	if err != nil {
		return offset, false, false, err
	}
	request.Body, request.ContentLength = http.NoBody, length
	if length > 0 {
		request.Body = io.NopCloser(io.NewSectionReader(f, offset, length))
	}
	request.Header.Set("Content-Range", what)
	response, again, err := b.do(request, http.StatusPermanentRedirect)
	if err != nil {
		return offset, false, again, err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusPermanentRedirect {
		return size, true, false, nil
	}
	_, last, found := strings.Cut(response.Header.Get("Range"), "-")
	if !found {
		return 0, false, false, nil // nothing has arrived
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n >= size {
		return offset, false, false, fmt.Errorf("the server has '%s' of %d bytes", response.Header.Get("Range"), size)
	}
	return n + 1, false, false, nil
}

func (b *gcsBucket) list(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for page := ""; ; {
			query := url.Values{"prefix": {prefix}, "fields": {"items(name),nextPageToken"}}
			if page != "" {
				query.Set("pageToken", page)
			}
			var answer struct {
				Items         []struct{ Name string }
				NextPageToken string
			}
			err := retried(ctx, b.pause, func() (bool, error) {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.object("")+"?"+query.Encode(), nil)
				if err != nil {
					return false, err
				}
				response, again, err := b.do(request)
				if err != nil {
					return again, err
				}
				defer response.Body.Close()
				return true, json.NewDecoder(response.Body).Decode(&answer)
			})
			if err != nil {
				yield("", err)
				return
			}
			for _, item := range answer.Items {
				if !yield(item.Name, nil) {
					return
				}
			}
			if page = answer.NextPageToken; page == "" {
				return
			}
		}
	}
}

func (b *gcsBucket) drop(ctx context.Context, key string) error {
	return retried(ctx, b.pause, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodDelete, b.object(key), nil)
		if err != nil {
			return false, err
		}
		response, again, err := b.do(request)
		if err != nil {
			return again, err
		}
		return false, response.Body.Close()
	})
}

// requestError returns an error of an HTTP client, and whether another attempt may succeed. An answer
// of the server that was asked for a token is left out: it may have secrets.
func requestError(what string, err error) (again bool, shown error) {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		return true, err
	}
	code := refused.Response.StatusCode
	return code == http.StatusTooManyRequests || code >= 500, fmt.Errorf("%s: no token: %s", what, refused.Response.Status)
}
