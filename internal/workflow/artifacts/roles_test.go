package artifacts

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// fakeSTS hands out the credentials of roles, as AWS does, and records who asked for which role.
func fakeSTS(t *testing.T) (asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		action, who := r.FormValue("Action"), "token "+r.FormValue("WebIdentityToken")
		if action == "AssumeRole" {
			_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
			who, _, _ = strings.Cut(rest, "/")
			who += " " + r.Header.Get("X-Amz-Security-Token")
		}
		role := r.FormValue("RoleArn")
		mu.Lock()
		all = append(all, who+" → "+role)
		mu.Unlock()
		if strings.Contains(role, "forbidden") {
			http.Error(w, `<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>`, http.StatusForbidden)
			return
		}
		name := role[strings.LastIndex(role, "/")+1:]
		fmt.Fprintf(w, `<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%[1]sResult><Credentials>
			<AccessKeyId>key-of-%[2]s</AccessKeyId><SecretAccessKey>s3cret</SecretAccessKey><SessionToken>session-of-%[2]s</SessionToken>
			<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></%[1]sResult></%[1]sResponse>`, action, name)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ENDPOINT_URL_STS", server.URL)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// TestRolesOfS3 checks as whom objects are stored: with keys, with the token of the pod's service
// account, with the environment, and as a role that one of these may assume.
func TestRolesOfS3(t *testing.T) {
	const pod, role = "arn:aws:iam::1:role/pod", "arn:aws:iam::1:role/store"
	identity := func(t *testing.T) {
		t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file(t, "t0ken", t.TempDir(), "token"))
		t.Setenv("AWS_ROLE_ARN", pod)
	}
	environment := func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "env")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
	}
	for name, c := range map[string]struct {
		machine func(*testing.T)
		keys    bool
		role    string
		sdk     bool
		asked   string
		stored  string
	}{
		"keys":                                   {nil, true, "", false, "[]", "access "},
		"keys before those of the machine":       {identity, true, "", true, "[]", "access "},
		"a role by keys":                         {nil, true, role, false, "[access  → " + role + "]", "key-of-store session-of-store"},
		"the service account's":                  {identity, false, "", true, "[token t0ken → " + pod + "]", "key-of-pod session-of-pod"},
		"the environment's":                      {environment, false, "", true, "[]", "env "},
		"a role by the service account's":        {identity, false, role, true, "[token t0ken → " + pod + " key-of-pod session-of-pod → " + role + "]", "key-of-store session-of-store"},
		"a role, and the rest is the machine's":  {environment, false, role, false, "[env  → " + role + "]", "key-of-store session-of-store"},
		"a role that the machine may not assume": {environment, false, "arn:aws:iam::1:role/forbidden", true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range os.Environ() { // what the machine of the test has
				if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
					t.Setenv(name, "")
				}
			}
			asked := fakeSTS(t)
			if c.machine != nil {
				c.machine(t)
			}
			r := newRecordedS3(t)
			if err := r.backend.CreateBucket("bucket"); err != nil {
				t.Fatal(err)
			}
			l := r.at("k")
			if l.S3.RoleARN, l.S3.FromMachine = c.role, c.sdk; !c.keys {
				l.S3.AccessKey, l.S3.SecretKey = "", ""
			}
			report := upload(t, l, "content")
			if c.stored == "" {
				if !report.Failed || !strings.Contains(report.Message, "s3.roleARN") || strings.Contains(report.Message, "s3cret") {
					t.Errorf("%+v", report)
				}
				return
			}
			if report.Failed {
				t.Fatal(report.Message)
			}
			_, rest, _ := strings.Cut(r.headers["PUT"].Get("Authorization"), "Credential=")
			who, _, _ := strings.Cut(rest, "/")
			if got := who + " " + r.headers["PUT"].Get("X-Amz-Security-Token"); got != c.stored {
				t.Errorf("stored by %q, want %q", got, c.stored)
			}
			if got := fmt.Sprint(asked()); got != c.asked {
				t.Errorf("asked for %s, want %s", got, c.asked)
			}
			if err := Load(t.Context(), &execapi.ArtifactPlan{Load: []execapi.Load{{Name: "in", From: l, To: filepath.Join(t.TempDir(), "in")}}}); err != nil {
				t.Error(err)
			}
		})
	}
}
