package render_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// secret returns the answer to reading a Secret with one value.
func secret(key, value string) render.Answer {
	return render.Answer{Returns: map[string]any{"value": map[string]any{"data": map[string]any{key: base64.StdEncoding.EncodeToString([]byte(value))}}}}
}

func status(code int64, body string) render.Answer {
	return render.Answer{Returns: map[string]any{"statusCode": code, "body": body}}
}

func value(object map[string]any) render.Answer {
	return render.Answer{Returns: map[string]any{"value": object}}
}

var (
	// cloudResources is the answer with one component of an environment, and where the environment is.
	cloudResources = render.Answer{Returns: map[string]any{"outputs": map[string]any{
		"components": []any{map[string]any{
			"name": "db", "value": map[string]any{"name": "db-prod", "type": "database"},
			"secret": map[string]any{"from": "conn-prod", "to": "conn", "namespace": "default"},
		}},
		"decisions": []any{map[string]any{"cluster": "c", "namespace": "n"}},
	}}}
	// configObjects is the answer with what a template of configs makes.
	configObjects = render.Answer{Returns: map[string]any{
		"secret": map[string]any{"kind": "Secret"}, "objects": []any{map[string]any{"kind": "ConfigMap"}},
	}}
)

// TestBuiltinSteps plays each built-in step with the answers that a cluster would give.
func TestBuiltinSteps(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for name, c := range map[string]struct {
		step, properties string
		world            map[string]render.Answer
		asked            string // the actions, as KEY:DO and parameters
		outcome          render.StepOutcome
		message          string
		outputs          []oam.StepOutput
		given            map[string]string
	}{
		"apply-object": {
			step: "apply-object", properties: `{"value": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}}`,
			world:   map[string]render.Answer{"apply": value(map[string]any{"metadata": map[string]any{"uid": "u"}})},
			asked:   `apply:apply cluster: value:map[apiVersion:v1 kind:ConfigMap metadata:map[name:a]]`,
			outcome: render.StepDone, outputs: []oam.StepOutput{{Name: "uid", ValueFrom: "value.metadata.uid"}}, given: map[string]string{"uid": `"u"`},
		},
		"read-object waits": {
			step: "read-object", properties: `{"kind": "Application", "name": "x"}`, world: map[string]render.Answer{"read": {Returns: map[string]any{"err": "not found"}}},
			asked: `read:read cluster: value:map[apiVersion:core.oam.dev/v1beta1 kind:Application metadata:map[name:x]]`, outcome: render.StepWaits, message: "it waits for Application x",
		},
		"read-object": {
			step: "read-object", properties: `{"apiVersion": "v1", "kind": "Service", "name": "x", "namespace": "n", "cluster": "c"}`,
			world:   map[string]render.Answer{"read": value(map[string]any{"spec": map[string]any{"ip": "1.2.3.4"}})},
			asked:   `read:read cluster:c value:map[apiVersion:v1 kind:Service metadata:map[name:x namespace:n]]`,
			outcome: render.StepDone,
			outputs: []oam.StepOutput{{Name: "ip", ValueFrom: "output.value.spec.ip"}}, given: map[string]string{"ip": `"1.2.3.4"`},
		},
		"notification to slack": {
			step: "notification", properties: `{"slack": {"url": {"value": "http://slack"}, "message": {"text": "hello"}}}`,
			world:   map[string]render.Answer{"slack.send": status(200, "ok")},
			asked:   `slack.send:do method:POST request:map[body:{"text":"hello"} header:map[Content-Type:application/json]] url:http://slack`,
			outcome: render.StepDone,
		},
		"notification with a secret, refused": {
			step: "notification", properties: `{"dingding": {"url": {"secretRef": {"name": "s", "key": "k"}}, "message": {"msgtype": "text"}}}`,
			world: map[string]render.Answer{"dingding.secret.read": secret("k", "http://ding"), "dingding.send": status(403, "no")},
			asked: `dingding.secret.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:s namespace:default]]; ` +
				`dingding.send:do method:POST request:map[body:{"msgtype":"text"} header:map[Content-Type:application/json]] url:http://ding`,
			outcome: render.StepFails, message: "dingding answers 403: no",
		},
		"notification by e-mail": {
			step: "notification",
			properties: `{"email": {"from": {"address": "a@x", "alias": "A", "password": {"secretRef": {"name": "s", "key": "k"}}, "host": "h"}, "to": ["b@x"],
				"content": {"subject": "s", "body": "b"}}, "lark": {"url": {"value": "http://lark"}, "message": {}}}`,
			world: map[string]render.Answer{"email.secret.read": secret("k", "pw"), "email.send": {}, "lark.send": status(200, "")},
			asked: `lark.send:do method:POST request:map[body:{} header:map[Content-Type:application/json]] url:http://lark; ` +
				`email.secret.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:s namespace:default]]; ` +
				`email.send:send content:map[body:b subject:s] from:map[address:a@x alias:A host:h password:pw port:587] to:[b@x]`,
			outcome: render.StepDone,
		},
		"webhook": {
			step: "webhook", properties: `{"url": {"value": "http://hook"}, "data": {"a": 1}}`, world: map[string]render.Answer{"post.send": status(500, "broken")},
			asked:   `post.send:do method:POST request:map[body:{"a":1} header:map[Content-Type:application/json]] url:http://hook`,
			outcome: render.StepFails, message: "the webhook answers 500: broken",
		},
		"webhook with the application": {
			step: "webhook", properties: `{"url": {"secretRef": {"name": "s", "key": "k"}}}`,
			world: map[string]render.Answer{"read.application": value(map[string]any{"kind": "Application"}), "read.secret": secret("k", "http://hook"), "post.send": status(200, "")},
			asked: `read.application:read cluster: value:map[apiVersion:core.oam.dev/v1beta1 kind:Application metadata:map[name:shop namespace:default]]; ` +
				`read.secret:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:s namespace:default]]; ` +
				`post.send:do method:POST request:map[body:{"kind":"Application"} header:map[Content-Type:application/json]] url:http://hook`,
			outcome: render.StepDone,
		},
		"request": {
			step: "request", properties: `{"url": "http://api", "method": "PUT", "body": {"n": 1}, "header": {"X": "y"}}`, world: map[string]render.Answer{"req": status(200, `{"stars": 5}`)},
			asked: `req:do method:PUT request:map[body:{"n":1} header:map[X:y]] url:http://api`, outcome: render.StepDone,
			outputs: []oam.StepOutput{{Name: "n", ValueFrom: "import \"strconv\"\n\"stars: \" + strconv.FormatInt(response[\"stars\"], 10)"}},
			given:   map[string]string{"n": `"stars: 5"`},
		},
		"request refused": {
			step: "request", properties: `{"url": "http://api"}`, world: map[string]render.Answer{"req": status(404, `{}`)},
			asked: `req:do method:GET request:map[] url:http://api`, outcome: render.StepFails, message: "GET http://api answers 404",
		},
		"check-metrics": {
			step: "check-metrics", properties: `{"query": "up", "condition": ">=1", "duration": "1m"}`,
			world:   map[string]render.Answer{"check": {Returns: map[string]any{"result": false, "failed": false, "message": "soon"}}},
			asked:   `check:promCheck condition:>=1 duration:1m failDuration:2m metricEndpoint:http://prometheus-server.o11y-system.svc:9090 query:up`,
			outcome: render.StepWaits, message: "soon",
		},
		"depends-on-app waits": {
			step: "depends-on-app", properties: `{"name": "db"}`, world: map[string]render.Answer{"other": value(map[string]any{"status": map[string]any{"status": "unhealthy"}})},
			asked:   `other:read cluster: value:map[apiVersion:core.oam.dev/v1beta1 kind:Application metadata:map[name:db namespace:default]]`,
			outcome: render.StepWaits, message: "it waits for application default/db",
		},
		"depends-on-app": {
			step: "depends-on-app", properties: `{"name": "db", "namespace": "n"}`, world: map[string]render.Answer{"other": value(map[string]any{"status": map[string]any{"status": "running"}})},
			asked:   `other:read cluster: value:map[apiVersion:core.oam.dev/v1beta1 kind:Application metadata:map[name:db namespace:n]]`,
			outcome: render.StepDone,
		},
		"export2config": {
			step: "export2config", properties: `{"configName": "c", "data": {"a": "b"}}`, world: map[string]render.Answer{"apply": {}},
			asked: `apply:apply cluster: value:map[apiVersion:v1 data:map[a:b] kind:ConfigMap metadata:map[name:c]]`, outcome: render.StepDone,
		},
		"export2secret": {
			step: "export2secret", properties: `{"secretName": "c", "namespace": "n", "type": "t/u", "data": {"a": "b"}}`, world: map[string]render.Answer{"apply": {}},
			asked: `apply:apply cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c namespace:n] stringData:map[a:b] type:t/u]`, outcome: render.StepDone,
		},
		"export2secret of a registry": {
			step: "export2secret", properties: `{"secretName": "c", "kind": "docker-registry", "dockerRegistry": {"username": "u", "password": "p", "server": "s"}}`, world: map[string]render.Answer{"apply": {}},
			asked:   `apply:apply cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c] stringData:map[.dockerconfigjson:{"auths":{"s":{"username":"u","password":"p","auth":"dTpw"}}}] type:kubernetes.io/dockerconfigjson]`,
			outcome: render.StepDone,
		},
		"apply-terraform-config": {
			step: "apply-terraform-config", properties: `{"source": {"hcl": "a"}, "variable": {"size": 1}, "region": "eu"}`,
			world: map[string]render.Answer{"apply": value(map[string]any{"status": map[string]any{"apply": map[string]any{"state": "Available", "outputs": map[string]any{"DB": map[string]any{"value": "d"}}}}})},
			asked: `apply:apply cluster: value:map[apiVersion:terraform.core.oam.dev/v1beta2 kind:Configuration metadata:map[name:shop-one namespace:default] ` +
				`spec:map[customRegion:eu deleteResource:true forceDelete:false hcl:a variable:map[size:1]]]`,
			outcome: render.StepDone, outputs: []oam.StepOutput{{Name: "db", ValueFrom: "output.status.apply.outputs.DB.value"}}, given: map[string]string{"db": `"d"`},
		},
		"generate-jdbc-connection": {
			step: "generate-jdbc-connection", properties: `{"name": "db"}`,
			world: map[string]render.Answer{"read": {Returns: map[string]any{"value": map[string]any{"data": map[string]any{
				"DB_HOST": "aG9zdA==", "DB_PORT": "MzMwNg==", "DB_NAME": "c2hvcA==", "DB_USER": "bWU=", "DB_PASSWORD": "cHc=",
			}}}}},
			asked:   `read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:db namespace:default]]`,
			outcome: render.StepDone, outputs: []oam.StepOutput{{Name: "env", ValueFrom: "env"}},
			given: map[string]string{"env": `[{"name":"url","value":"jdbc://host:3306/shop?characterEncoding=utf8\u0026useSSL=false"},{"name":"username","value":"me"},{"name":"password","value":"pw"}]`},
		},
		"create-config": {
			step: "create-config", properties: `{"name": "c", "config": {"a": "b"}}`, world: map[string]render.Answer{"create.apply": {}},
			asked: `create.apply:apply cluster: value:map[apiVersion:v1 kind:Secret metadata:map[labels:map[config.oam.dev/catalog:velacore-config] name:c namespace:default] ` +
				`stringData:map[input-properties:{"a":"b"}] type:Opaque]`, outcome: render.StepDone,
		},
		"read-config": {
			step: "read-config", properties: `{"name": "c"}`, world: map[string]render.Answer{"read.read": secret("input-properties", `{"a": 1}`)},
			asked:   `read.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c namespace:default]]`,
			outcome: render.StepDone, outputs: []oam.StepOutput{{Name: "a", ValueFrom: "output.config.a"}}, given: map[string]string{"a": "1"},
		},
		"list-config": {
			step: "list-config", properties: `{"template": "t", "namespace": "n"}`,
			world: map[string]render.Answer{"list.list": {Returns: map[string]any{"values": map[string]any{"items": []any{
				map[string]any{"metadata": map[string]any{"name": "c"}, "data": map[string]any{"input-properties": base64.StdEncoding.EncodeToString([]byte(`{"a":"b"}`))}},
				map[string]any{"metadata": map[string]any{"name": "d"}},
			}}}}},
			asked: `list.list:list cluster: filter:map[matchingLabels:map[config.oam.dev/catalog:velacore-config config.oam.dev/type:t] namespace:n] ` +
				`resource:map[apiVersion:v1 kind:Secret]`,
			outcome: render.StepDone, outputs: []oam.StepOutput{{Name: "all", ValueFrom: "output.configs"}}, given: map[string]string{"all": `[{"name":"c","config":{"a":"b"}}]`},
		},
		"delete-config": {
			step: "delete-config", properties: `{"name": "c"}`,
			world: map[string]render.Answer{"delete.remove": {}, "delete.read": value(map[string]any{"metadata": map[string]any{"labels": map[string]any{"config.oam.dev/catalog": "velacore-config", "x": "y"}}})},
			asked: `delete.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c namespace:default]]; ` +
				`delete.remove:delete cluster: value:map[apiVersion:v1 kind:Secret metadata:map[labels:map[config.oam.dev/catalog:velacore-config] name:c namespace:default]]`,
			outcome: render.StepDone,
		},
		"delete-config of none": {
			step: "delete-config", properties: `{"name": "c"}`, world: map[string]render.Answer{"delete.read": {Returns: map[string]any{"err": "not found"}}},
			asked: `delete.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c namespace:default]]`, outcome: render.StepDone,
		},
		"collect-service-endpoints waits": {
			step: "collect-service-endpoints", properties: `{"portName": "http"}`, world: map[string]render.Answer{"collect": {Returns: map[string]any{"list": []any{}}}},
			asked: `collect:collectServiceEndpoints app:map[filter:map[] name:shop namespace:default]`, outcome: render.StepWaits, message: "it waits for an address of shop",
		},
		"collect-service-endpoints": {
			step: "collect-service-endpoints", properties: `{"name": "db", "components": ["c"], "port": 81}`,
			world: map[string]render.Answer{"collect": {Returns: map[string]any{"list": []any{
				map[string]any{"endpoint": map[string]any{"host": "a", "port": int64(80), "inner": true}},
				map[string]any{"endpoint": map[string]any{"host": "b", "port": int64(81), "inner": true, "path": "/p"}},
			}}}},
			asked: `collect:collectServiceEndpoints app:map[filter:map[components:[c]] name:db namespace:default]`, outcome: render.StepDone,
			outputs: []oam.StepOutput{{Name: "url", ValueFrom: "value.url"}, {Name: "host", ValueFrom: "value.endpoint.host"}},
			given:   map[string]string{"url": `"http://b:81/p"`, "host": `"b"`},
		},
		"print-message-in-status": {step: "print-message-in-status", properties: `{"message": "hello"}`, outcome: render.StepDone, message: "hello"},
		"suspend":                 {step: "suspend", properties: `{"duration": "1s"}`, outcome: render.StepSuspends},
		"step-group":              {step: "step-group", properties: `{}`, outcome: render.StepDone},
		"deploy waits":            {step: "deploy", properties: `{"auto": false}`, outcome: render.StepSuspends, message: "it deploys when it is resumed"},
		"deploy": {
			step: "deploy", properties: `{"policies": ["a"]}`, world: map[string]render.Answer{"deploy": {}},
			asked: `deploy:deploy ignoreTerraformComponent:true inlinePolicies:[] parallelism:5 policies:[a]`, outcome: render.StepDone,
		},
		"apply-component": {
			step: "apply-component", properties: `{"component": "web", "namespace": "n"}`, world: map[string]render.Answer{"apply": {}},
			asked: `apply:component-apply cluster: namespace:n value:map[name:web type:worker] waitHealthy:true`, outcome: render.StepDone,
		},
		"apply-application": {
			step: "apply-application", properties: `{}`, world: map[string]render.Answer{"apply.components.web": {}, "apply.components.db": {}},
			asked: `apply.components.web:component-apply cluster: namespace: value:map[name:web type:worker] waitHealthy:true; ` +
				`apply.components.db:component-apply cluster: namespace: value:map[name:db type:worker] waitHealthy:true`, outcome: render.StepDone,
		},
		"apply-application-in-parallel": {
			step: "apply-application-in-parallel", properties: `{}`, world: map[string]render.Answer{"apply.components.web": {}, "apply.components.db": {}},
			asked: `apply.components.web:component-apply cluster: namespace: value:map[name:web type:worker] waitHealthy:false; ` +
				`apply.components.db:component-apply cluster: namespace: value:map[name:db type:worker] waitHealthy:false`, outcome: render.StepDone,
		},
		"apply-deployment waits": {
			step: "apply-deployment", properties: `{"image": "nginx", "cmd": ["run"]}`, world: map[string]render.Answer{"output": value(map[string]any{"status": map[string]any{}})},
			asked: `output:apply cluster: value:map[apiVersion:apps/v1 kind:Deployment metadata:map[name:one namespace:default] spec:map[replicas:1 ` +
				`selector:map[matchLabels:map[workflow.oam.dev/step-name:shop-one]] template:map[metadata:map[labels:map[workflow.oam.dev/step-name:shop-one]] ` +
				`spec:map[containers:[map[command:[run] image:nginx name:one]]]]]]`,
			outcome: render.StepWaits, message: "it waits for the pods of one",
		},
		"apply-deployment": {
			step: "apply-deployment", properties: `{"image": "nginx", "replicas": 2, "cluster": "c"}`,
			world: map[string]render.Answer{"output": value(map[string]any{"status": map[string]any{"readyReplicas": int64(2)}})},
			asked: `output:apply cluster:c value:map[apiVersion:apps/v1 kind:Deployment metadata:map[name:one namespace:default] spec:map[replicas:2 ` +
				`selector:map[matchLabels:map[workflow.oam.dev/step-name:shop-one]] template:map[metadata:map[labels:map[workflow.oam.dev/step-name:shop-one]] ` +
				`spec:map[containers:[map[image:nginx name:one]]]]]]`,
			outcome: render.StepDone,
		},
		"clean-jobs": {
			step: "clean-jobs", properties: `{}`, world: map[string]render.Answer{"jobs": {}, "pods": {}},
			asked: `jobs:delete cluster: filter:map[matchingLabels:map[workflow.oam.dev/name:shop] namespace:default] value:map[apiVersion:batch/v1 kind:Job metadata:map[namespace:default]]; ` +
				`pods:delete cluster: filter:map[matchingLabels:map[workflow.oam.dev/name:shop] namespace:default] value:map[apiVersion:v1 kind:Pod metadata:map[namespace:default]]`,
			outcome: render.StepDone,
		},
		"build-push-image": {
			step: "build-push-image", properties: `{"context": {"git": "git://g/r", "branch": "main"}, "image": "i:1", "buildArgs": ["A=b"], "credentials": {"image": {"name": "reg"}}}`,
			world: map[string]render.Answer{"build": value(map[string]any{"status": map[string]any{"phase": "Succeeded"}})},
			asked: `build:apply cluster: value:map[apiVersion:v1 kind:Pod metadata:map[name:shop--kaniko namespace:default] spec:map[containers:[map[` +
				`args:[--dockerfile=./Dockerfile --context=git://g/r#refs/heads/main --destination=i:1 --verbosity=info --build-arg=A=b] image:oamdev/kaniko-executor:v1.9.1 ` +
				`name:kaniko volumeMounts:[map[mountPath:/kaniko/.docker/ name:reg]]]] restartPolicy:Never volumes:[map[name:reg secret:map[items:[map[key:.dockerconfigjson path:config.json]] secretName:reg]]]]]`,
			outcome: render.StepDone,
		},
		"build-push-image that fails": {
			step: "build-push-image", properties: `{"context": "dir:///w", "image": "i:1", "credentials": {"git": {"name": "t", "key": "k"}}}`,
			world: map[string]render.Answer{"build": value(map[string]any{"status": map[string]any{"phase": "Failed"}})},
			asked: `build:apply cluster: value:map[apiVersion:v1 kind:Pod metadata:map[name:shop--kaniko namespace:default] spec:map[containers:[map[` +
				`args:[--dockerfile=./Dockerfile --context=dir:///w --destination=i:1 --verbosity=info] env:[map[name:GIT_TOKEN valueFrom:map[secretKeyRef:map[key:k name:t]]]] ` +
				`image:oamdev/kaniko-executor:v1.9.1 name:kaniko]] restartPolicy:Never]]`,
			outcome: render.StepFails, message: "the pod shop--kaniko has failed",
		},
		"vela-cli": {
			step: "vela-cli", properties: `{"addonName": "x", "command": ["vela", "ls"], "image": "i:1", "serviceAccountName": "robot", "storage": {
				"secret": [{"name": "s", "mountPath": "/s", "subPath": "p", "secretName": "t", "items": [{"key": "a", "path": "b"}]},
					{"name": "s", "mountPath": "/again", "secretName": "t", "items": [{"key": "a", "path": "b"}]}],
				"hostPath": [{"name": "h", "path": "/h", "mountPath": "/m"}]}}`,
			world: map[string]render.Answer{"job": value(map[string]any{"status": map[string]any{"succeeded": int64(1)}})},
			asked: `job:apply cluster: value:map[apiVersion:batch/v1 kind:Job metadata:map[name:shop-one- namespace:default] spec:map[backoffLimit:3 template:map[` +
				`metadata:map[labels:map[workflow.oam.dev/step-name:shop-one]] spec:map[containers:[map[command:[vela ls] image:i:1 name:command ` +
				`volumeMounts:[map[mountPath:/s name:secret-s subPath:p] map[mountPath:/again name:secret-s] map[mountPath:/m name:hostpath-h]]]] restartPolicy:Never serviceAccountName:robot ` +
				`volumes:[map[name:secret-s secret:map[defaultMode:420 items:[map[key:a mode:511 path:b]] secretName:t]] map[hostPath:map[path:/h type:Directory] name:hostpath-h]]]]]]`,
			outcome: render.StepDone,
		},
		"vela-cli waits": {
			step: "vela-cli", properties: `{}`, world: map[string]render.Answer{"job": value(map[string]any{"status": map[string]any{"active": int64(1), "failed": int64(2)}})},
			asked: `job:apply cluster: value:map[apiVersion:batch/v1 kind:Job metadata:map[name:shop-one- namespace:default] spec:map[backoffLimit:3 template:map[` +
				`metadata:map[labels:map[workflow.oam.dev/step-name:shop-one]] spec:map[containers:[map[image:oamdev/vela-cli:v1.6.4 name:command]] restartPolicy:Never serviceAccountName:default]]]]`,
			outcome: render.StepWaits, message: "it waits for Job shop-one-, whose pods need service account default",
		},
		"vela-cli that fails": {
			step: "vela-cli", properties: `{"image": "i:1"}`, world: map[string]render.Answer{"job": value(map[string]any{"status": map[string]any{"failed": int64(3)}})},
			asked: `job:apply cluster: value:map[apiVersion:batch/v1 kind:Job metadata:map[name:shop-one- namespace:default] spec:map[backoffLimit:3 template:map[` +
				`metadata:map[labels:map[workflow.oam.dev/step-name:shop-one]] spec:map[containers:[map[image:i:1 name:command]] restartPolicy:Never serviceAccountName:default]]]]`,
			outcome: render.StepFails, message: "the command has failed 3 times: see the pods of Job shop-one-",
		},
		"deploy2env": {
			step: "deploy2env", properties: `{"env": "prod", "parallel": true}`, world: map[string]render.Answer{"deploy": {}},
			asked: `deploy:apply-env-binding env:prod policy:`, outcome: render.StepDone,
		},
		"deploy-cloud-resource": {
			step: "deploy-cloud-resource", properties: `{"env": "prod"}`,
			world: map[string]render.Answer{
				"deploy.prepare": cloudResources, "deploy.deploy.db.apply": {}, "deploy.deploy.db.share.read": secret("HOST", "db"), `deploy.deploy.db.share.copy."c/n"`: {},
			},
			asked: `deploy.prepare:terraform-env-binding inputs:map[env:prod policy:]; ` +
				`deploy.deploy.db.apply:component-apply cluster: namespace: value:map[name:db-prod type:database] waitHealthy:true; ` +
				`deploy.deploy.db.share.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:conn-prod namespace:default]]; ` +
				`deploy.deploy.db.share.copy."c/n":apply cluster:c value:map[apiVersion:v1 data:map[HOST:ZGI=] kind:Secret metadata:map[name:conn namespace:n] type:Opaque]`,
			outcome: render.StepDone,
		},
		"deploy-cloud-resource waits": {
			step: "deploy-cloud-resource", properties: `{"env": "prod", "policy": "p"}`,
			world: map[string]render.Answer{"deploy.prepare": cloudResources, "deploy.deploy.db.apply": {}, "deploy.deploy.db.share.read": {Returns: map[string]any{"err": "not found"}}},
			asked: `deploy.prepare:terraform-env-binding inputs:map[env:prod policy:p]; ` +
				`deploy.deploy.db.apply:component-apply cluster: namespace: value:map[name:db-prod type:database] waitHealthy:true; ` +
				`deploy.deploy.db.share.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:conn-prod namespace:default]]`,
			outcome: render.StepWaits, message: "it waits for Secret default/conn-prod",
		},
		"share-cloud-resource": {
			step: "share-cloud-resource", properties: `{"env": "prod", "placements": [{"cluster": "d"}, {"namespace": "m"}]}`,
			world: map[string]render.Answer{
				"share.prepare": cloudResources, "share.share.db.read": secret("HOST", "db"), `share.share.db.copy."d/default"`: {}, `share.share.db.copy."local/m"`: {},
			},
			asked: `share.prepare:terraform-env-binding inputs:map[env:prod policy:]; ` +
				`share.share.db.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:conn-prod namespace:default]]; ` +
				`share.share.db.copy."d/default":apply cluster:d value:map[apiVersion:v1 data:map[HOST:ZGI=] kind:Secret metadata:map[name:conn namespace:default] type:Opaque]; ` +
				`share.share.db.copy."local/m":apply cluster:local value:map[apiVersion:v1 data:map[HOST:ZGI=] kind:Secret metadata:map[name:conn namespace:m] type:Opaque]`,
			outcome: render.StepDone,
		},
		"create-config of a template": {
			step: "create-config", properties: `{"name": "c", "template": "t", "config": {"a": "b"}}`,
			world: map[string]render.Answer{"create.rendered": configObjects, "create.apply": {}, `create.others."0"`: {}},
			asked: `create.rendered:render-config config:map[a:b] name:c namespace:default template:t; create.apply:apply cluster: value:map[kind:Secret]; ` +
				`create.others."0":apply cluster: value:map[kind:ConfigMap]`, outcome: render.StepDone,
		},
		"read-config that is sensitive": {
			step: "read-config", properties: `{"name": "c"}`,
			world: map[string]render.Answer{"read.read": value(map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{"config.oam.dev/sensitive": "true"}}, "data": map[string]any{"input-properties": "e30="},
			})},
			asked:   `read.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c namespace:default]]`,
			outcome: render.StepFails, message: "config c is sensitive: a step must not read it",
		},
		"list-config with one that is sensitive": {
			step: "list-config", properties: `{}`,
			world: map[string]render.Answer{"list.list": {Returns: map[string]any{"values": map[string]any{"items": []any{
				map[string]any{"metadata": map[string]any{"name": "c", "annotations": map[string]any{"config.oam.dev/sensitive": "true"}}, "data": map[string]any{"input-properties": "e30="}},
				map[string]any{"metadata": map[string]any{"name": "d", "annotations": map[string]any{"config.oam.dev/sensitive": "false"}}, "data": map[string]any{"input-properties": "e30="}},
			}}}}},
			asked:   `list.list:list cluster: filter:map[matchingLabels:map[config.oam.dev/catalog:velacore-config] namespace:default] resource:map[apiVersion:v1 kind:Secret]`,
			outcome: render.StepDone, outputs: []oam.StepOutput{{Name: "all", ValueFrom: "output.configs"}}, given: map[string]string{"all": `[{"name":"d","config":{}}]`},
		},
		"delete-config with other objects": {
			step: "delete-config", properties: `{"name": "c"}`,
			world: map[string]render.Answer{"delete.remove": {}, `delete.others."0"`: {}, "delete.read": value(map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"config.oam.dev/catalog": "velacore-config"}},
				"data":     map[string]any{"objects-reference": base64.StdEncoding.EncodeToString([]byte(`[{"apiVersion":"v1","kind":"ConfigMap","namespace":"","name":"note"}]`))},
			})},
			asked: `delete.read:read cluster: value:map[apiVersion:v1 kind:Secret metadata:map[name:c namespace:default]]; ` +
				`delete.others."0":delete cluster: value:map[apiVersion:v1 kind:ConfigMap metadata:map[name:note]]; ` +
				`delete.remove:delete cluster: value:map[apiVersion:v1 kind:Secret metadata:map[labels:map[config.oam.dev/catalog:velacore-config] name:c namespace:default]]`,
			outcome: render.StepDone,
		},
		"apply-terraform-provider": {
			step: "apply-terraform-provider", properties: `{"type": "aws", "accessKey": "a", "secretKey": "b", "region": "eu"}`,
			world: map[string]render.Answer{"create.rendered": configObjects, "create.apply": {}, `create.others."0"`: {}, "read": value(map[string]any{"status": map[string]any{"state": "ready"}})},
			asked: `create.rendered:render-config config:map[AWS_ACCESS_KEY_ID:a AWS_DEFAULT_REGION:eu AWS_SECRET_ACCESS_KEY:b AWS_SESSION_TOKEN: name:aws-provider] name:shop-one namespace:default template:terraform-aws; ` +
				`create.apply:apply cluster: value:map[kind:Secret]; create.others."0":apply cluster: value:map[kind:ConfigMap]; ` +
				`read:read cluster: value:map[apiVersion:terraform.core.oam.dev/v1beta1 kind:Provider metadata:map[name:aws-provider namespace:default]]`,
			outcome: render.StepDone,
		},
		"apply-terraform-provider by default": {
			step: "apply-terraform-provider", properties: `{}`,
			world: map[string]render.Answer{"create.rendered": configObjects, "create.apply": {}, `create.others."0"`: {}, "read": {Returns: map[string]any{"err": "not found"}}},
			asked: `create.rendered:render-config config:map[ALICLOUD_ACCESS_KEY: ALICLOUD_REGION: ALICLOUD_SECRET_KEY: name:alibaba-provider] name:shop-one namespace:default template:terraform-alibaba; ` +
				`create.apply:apply cluster: value:map[kind:Secret]; create.others."0":apply cluster: value:map[kind:ConfigMap]; ` +
				`read:read cluster: value:map[apiVersion:terraform.core.oam.dev/v1beta1 kind:Provider metadata:map[name:alibaba-provider namespace:default]]`,
			outcome: render.StepWaits, message: "it waits until Provider alibaba-provider is ready",
		},
		"deploy2runtime": {
			step: "deploy2runtime", properties: `{"clusters": ["c"]}`, world: map[string]render.Answer{`apply."c-web"`: {}, `apply."c-db"`: {}},
			asked:   `apply."c-web":component-apply cluster:c namespace: value:map[name:web type:worker] waitHealthy:true; apply."c-db":component-apply cluster:c namespace: value:map[name:db type:worker] waitHealthy:true`,
			outcome: render.StepDone,
		},
		"restart-workflow": {
			step: "restart-workflow", properties: `{"every": "1h"}`, world: map[string]render.Answer{"restart#read": value(map[string]any{"kind": "Application"}), "restart": {}},
			asked:   "restart#read:read cluster: value:map[apiVersion:core.oam.dev/v1beta1 kind:Application metadata:map[name:shop namespace:default]]; restart:patch cluster: patch:map[metadata:map[annotations:map[app.oam.dev/restart-workflow:1h]]] value:map[apiVersion:core.oam.dev/v1beta1 kind:Application metadata:map[name:shop namespace:default]]",
			outcome: render.StepDone,
		},
		"apply-remaining": {
			step: "apply-remaining", properties: `{"exceptions": {"web": {}}}`, world: map[string]render.Answer{"apply.components.db": {}},
			asked: `apply.components.db:component-apply cluster: namespace: value:map[name:db type:worker] waitHealthy:true`, outcome: render.StepDone,
		},
		"export-data": {
			step: "export-data", properties: `{"name": "d", "data": {"a": "b"}, "topology": "t"}`,
			world:   map[string]render.Answer{"places": {Returns: map[string]any{"placements": []any{map[string]any{"cluster": "c", "namespace": "n"}}}}, `apply."c/n"`: {}},
			asked:   `places:get-placements-from-topology-policies policies:[t]; apply."c/n":apply cluster:c value:map[apiVersion:v1 data:map[a:b] kind:ConfigMap metadata:map[name:d namespace:n]]`,
			outcome: render.StepDone,
		},
		"export-service": {
			step: "export-service", properties: `{"name": "d", "ip": "1.2.3.4", "port": 80, "targetPort": 8080}`,
			world: map[string]render.Answer{
				"places":                {Returns: map[string]any{"placements": []any{map[string]any{"cluster": "c", "namespace": "n"}}}},
				`apply."c/n".service`:   {},
				`apply."c/n".endpoints`: {},
			},
			asked: `places:get-placements-from-topology-policies policies:[]; ` +
				`apply."c/n".service:apply cluster:c value:map[apiVersion:v1 kind:Service metadata:map[name:d namespace:n] spec:map[ports:[map[port:80 protocol:TCP targetPort:8080]] type:ClusterIP]]; ` +
				`apply."c/n".endpoints:apply cluster:c value:map[apiVersion:v1 kind:Endpoints metadata:map[name:d namespace:n] subsets:[map[addresses:[map[ip:1.2.3.4]] ports:[map[port:8080]]]]]`,
			outcome: render.StepDone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			template := all[string(render.WorkflowStep)+" "+c.step]
			if template == nil {
				t.Fatal("there is no such step")
			}
			used[template.Definition.String()] = true
			s, asked := playTemplate(t, template, c.properties, c.world, c.outputs...)
			var got []string
			for _, a := range asked {
				text := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(a.Params), "map["), "]")
				got = append(got, a.Key+":"+a.Do+" "+text)
			}
			if g := strings.Join(got, "; "); g != c.asked {
				t.Errorf("it asks for\n%s\nnot\n%s", g, c.asked)
			}
			if s.Outcome != c.outcome || s.Message != c.message {
				t.Errorf("outcome %d, message %q", s.Outcome, s.Message)
			}
			for name, want := range c.given {
				if string(s.Outputs[name]) != want {
					t.Errorf("output %s is %s, not %s", name, s.Outputs[name], want)
				}
			}
		})
	}
	for name, template := range all {
		if template.Definition.Kind == render.WorkflowStep && !used[name] {
			t.Errorf("no case uses %s", name)
		}
	}
}

// TestAStepSaysWhatItCouldNotRead checks that a notification without its Secret names the Secret.
func TestAStepSaysWhatItCouldNotRead(t *testing.T) {
	template := use(t, render.WorkflowStep, "notification", nil).Template
	_, err := template.Step(&render.StepRequest{
		Properties: []byte(`{"slack": {"url": {"secretRef": {"name": "s", "key": "k"}}, "message": {"text": "a"}}}`),
		Answers:    map[string]render.Answer{"slack.secret.read": {Returns: map[string]any{"err": "Secret default/s not found"}}},
	})
	if err == nil || !strings.Contains(err.Error(), "slack.send: Secret default/s not found") {
		t.Errorf("%v", err)
	}
}
