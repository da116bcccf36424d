package controller_test

import (
	"testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// step is a template whose pod runs that long, exits with code and says message.
const stepTemplates = `
- name: quick
  metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
  container: {image: a, command: [c]}
- name: hello
  metadata: {annotations: {lockstep.dev/sim-duration: 100ms, lockstep.dev/sim-message: '{"lockstep":1,"result":"hello"}'}}
  container: {image: a, command: [c]}
- name: fail
  metadata: {annotations: {lockstep.dev/sim-duration: 100ms, lockstep.dev/sim-exit-code: "3"}}
  container: {image: a, command: [c]}
- name: forever
  container: {image: a, command: [c]}
`

func TestHelloWorld(t *testing.T) {
	e := start(t)
	e.submit("hi", "entrypoint: hello\ntemplates:"+stepTemplates)
	w := e.until("hi", inPhase(wf.WorkflowSucceeded))
	e.expect(w, "W Pod Succeeded result=hello")
}
