package dictcodec

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestAlikeGivesBackWhatItWasGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Codec
		for range rapid.IntRange(1, 5).Draw(t, "texts") {
			text := []byte(rapid.StringMatching(`[a-d"{}:]{0,400}`).Draw(t, "text"))
			got, err := p.Unpack(p.Pack(text))
			if err != nil || !bytes.Equal(got, text) {
				t.Fatalf("%q came back as %q: %v", text, got, err)
			}
		}
	})
}

func TestAlikePacksWhatResemblesTheFirst(t *testing.T) {
	var p Codec
	object := func(i int) []byte {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"metadata":{"name":"app-%d","uid":"%d"},"data":{`, i, i*7919)
		for n := range 300 {
			fmt.Fprintf(&b, `"key-%d":"value %d",`, n, n*n)
		}
		b.WriteString(`"last":""}}`)
		return b.Bytes()
	}
	p.Pack(object(0))
	if text := object(1); len(p.Pack(text))*20 > len(text) {
		t.Errorf("%d bytes were packed into %d", len(text), len(p.Pack(text)))
	}
}

// BenchmarkAlike compresses and decompresses a Deployment as the watch returns it.
func BenchmarkAlike(b *testing.B) {
	deployment := func(i int) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"app-%[1]d","namespace":"ns","uid":"%[2]08x-4711","resourceVersion":"%[2]d",`+
			`"generation":1,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app.oam.dev/appRevision":"app-%[1]d-v1","app.oam.dev/component":"app-%[1]d","app.oam.dev/name":"app-%[1]d",`+
			`"app.oam.dev/namespace":"ns","app.oam.dev/render-hash":"%[2]x","workload.oam.dev/type":"webservice"},"annotations":{"deployment.kubernetes.io/revision":"1"}},`+
			`"spec":{"replicas":0,"selector":{"matchLabels":{"app.oam.dev/component":"app-%[1]d"}},"template":{"metadata":{"labels":{"app.oam.dev/component":"app-%[1]d","app.oam.dev/name":"app-%[1]d"}},`+
			`"spec":{"containers":[{"name":"app-%[1]d","image":"nginx","imagePullPolicy":"Always","terminationMessagePath":"/dev/termination-log","volumeMounts":[{"name":"app-%[1]d-conf","mountPath":"/conf"}]}],`+
			`"volumes":[{"name":"app-%[1]d-conf","configMap":{"name":"app-%[1]d-conf","defaultMode":420}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","schedulerName":"default-scheduler"}},`+
			`"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%%","maxSurge":"25%%"}},"revisionHistoryLimit":10,"progressDeadlineSeconds":600},`+
			`"status":{"observedGeneration":1,"conditions":[{"type":"Available","status":"True","reason":"MinimumReplicasAvailable","message":"Deployment has minimum availability."}]}}`, i, i*7919*7919)
	}
	var p Codec
	p.Pack(deployment(1))
	text := deployment(4711)
	packed := p.Pack(text)
	b.Run("pack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Pack(text)
		}
		b.ReportMetric(float64(len(text))/float64(len(packed)), "times-smaller")
	})
	b.Run("unpack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Unpack(packed); err != nil {
				b.Fatal(err)
			}
		}
	})
}
