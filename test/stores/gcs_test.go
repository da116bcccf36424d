package stores

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// TestGCS uses a server that has the API of Google Cloud Storage.
func TestGCS(t *testing.T) {
	server := fetched(t, "fake-gcs-server")
	port := ports(t, 1)[0]
	address := fmt.Sprintf("127.0.0.1:%d", port)
	start(t, port, server, "-scheme", "http", "-host", "127.0.0.1", "-port", fmt.Sprint(port), "-backend", "memory",
		"-public-host", address, "-external-url", "http://"+address)
	t.Setenv("STORAGE_EMULATOR_HOST", address)
	response, err := http.Post("http://"+address+"/storage/v1/b?project=p", "application/json", strings.NewReader(`{"name": "bucket"}`))
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response, err)
	}
	response.Body.Close()
	roundTrips(t, func(key string) execapi.Location {
		return execapi.Location{GCS: &execapi.GCS{Bucket: "bucket", Key: key}}
	})
}
