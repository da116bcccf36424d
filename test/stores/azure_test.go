package stores

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// azurite starts Azure's own emulator and returns the endpoint of its account.
func azurite(t *testing.T, flags ...string) string {
	t.Helper()
	server := filepath.Join(fetched(t, "azurite"), "node_modules/azurite/dist/src/blob/main.js")
	port := ports(t, 1)[0]
	start(t, port, program(t, "node"), append([]string{server, "--blobHost", "127.0.0.1", "--blobPort", fmt.Sprint(port),
		"--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"}, flags...)...)
	return fmt.Sprintf("http://127.0.0.1:%d/%s", port, azureAccount)
}

// azureAccount and azureKey are set for the emulator by AZURITE_ACCOUNTS.
const azureAccount = "lockstep"

var azureKey = base64.StdEncoding.EncodeToString([]byte("a key of the emulator's account"))

func TestAzure(t *testing.T) {
	t.Setenv("AZURITE_ACCOUNTS", azureAccount+":"+azureKey)
	endpoint := azurite(t)
	credential, err := container.NewSharedKeyCredential(azureAccount, azureKey)
	if err != nil {
		t.Fatal(err)
	}
	client, err := container.NewClientWithSharedKeyCredential(endpoint+"/box", credential, nil)
	if err == nil {
		_, err = client.Create(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	signed, err := client.GetSASURL(sas.ContainerPermissions{Read: true, Write: true, Create: true, Delete: true, List: true}, time.Now().Add(time.Hour), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, signature, _ := strings.Cut(signed, "?")
	for name, secret := range map[string]string{"with the account's key": azureKey, "with a shared access signature": "?" + signature} {
		t.Run(name, func(t *testing.T) {
			key := file(t, secret+"\n", t.TempDir(), "key")
			roundTrips(t, func(blob string) execapi.Location {
				return execapi.Location{Azure: &execapi.Azure{Endpoint: endpoint, Container: "box", Blob: blob, AccountKey: key}}
			})
		})
	}
	t.Run("refusals name the blob and no secret", func(t *testing.T) {
		for _, secret := range []string{base64.StdEncoding.EncodeToString([]byte("another")), "sv=2024-05-04&sr=c&sp=r&sig=s3cret", "not base64!"} {
			key := file(t, secret, t.TempDir(), "key")
			err := load(t, execapi.Location{Azure: &execapi.Azure{Endpoint: endpoint, Container: "box", Blob: "b", AccountKey: key}}, execapi.ArchiveNone, filepath.Join(t.TempDir(), "in"))
			if err == nil || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		}
	})
}

// TestAzureIdentity uses the identity of the pod: the emulator takes tokens by HTTPS only.
func TestAzureIdentity(t *testing.T) {
	t.Setenv("AZURITE_ACCOUNTS", azureAccount+":"+azureKey)
	endpoint := strings.Replace(azurite(t, "--oauth", "basic", "--cert", certFile, "--key", keyFile), "http:", "https:", 1)
	// The identity of the machine, as it is asked for on App Service and Azure Arc.
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-IDENTITY-HEADER") != "who" || r.URL.Query().Get("resource") != "https://storage.azure.com" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		token := part(map[string]string{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
			"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/", "nbf": now.Add(-time.Hour).Unix(), "iat": now.Add(-time.Hour).Unix(),
			"exp": now.Add(time.Hour).Unix(), "ver": "1.0",
		}) + "." + base64.RawURLEncoding.EncodeToString([]byte("signature"))
		fmt.Fprintf(w, `{"access_token": %q, "expires_on": "%d", "resource": "https://storage.azure.com", "token_type": "Bearer"}`, token, now.Add(time.Hour).Unix())
	}))
	t.Cleanup(identity.Close)
	t.Setenv("IDENTITY_ENDPOINT", identity.URL)
	t.Setenv("IDENTITY_HEADER", "who")
	credential, err := container.NewSharedKeyCredential(azureAccount, azureKey)
	if err != nil {
		t.Fatal(err)
	}
	client, err := container.NewClientWithSharedKeyCredential(endpoint+"/box", credential, nil)
	if err == nil {
		_, err = client.Create(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	roundTrips(t, func(blob string) execapi.Location {
		return execapi.Location{Azure: &execapi.Azure{Endpoint: endpoint, Container: "box", Blob: blob, FromMachine: true}}
	})
}
