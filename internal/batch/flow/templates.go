package flow

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

// listedJobs bounds the Jobs in the status of a JobTemplate.
const listedJobs = 1000

// templates keeps the status of JobTemplates.
type templates struct {
	Config
	loop *controlloop.Loop[types.NamespacedName, templateRecord]
}

// templateRecord is the in-memory state of one JobTemplate.
type templateRecord struct {
	uid types.UID
	// version is the resource version after the last write, which the cache may not show yet, or
	// the one for which a write was refused because the server had a newer one.
	version  string
	conflict bool
	written  time.Time
}

func newTemplates(cfg Config) *templates {
	t := &templates{Config: cfg}
	t.loop = controlloop.New[types.NamespacedName, templateRecord](controlloop.Config[types.NamespacedName]{
		Name: "jobtemplates", Workers: 1, Turn: t.turn, Guard: cfg.Guard, Panicked: t.panicked, Clock: cfg.Clock,
	})
	wake := func(template *api.JobTemplate) { t.loop.Wake(informer.KeyOf(template)) }
	cfg.Informers.JobTemplates.Follow(wake, wake)
	wakeOf := func(j *batch.Job) {
		if template, ok := strings.CutPrefix(j.Annotations[api.CreatedByJobTemplateKey], j.Namespace+"."); ok {
			t.loop.Wake(types.NamespacedName{Namespace: j.Namespace, Name: template})
		}
	}
	cfg.Informers.Jobs.Handle(informer.Handler[*batch.Job]{Added: wakeOf, Deleted: wakeOf})
	return t
}

func (t *templates) panicked(key types.NamespacedName, p *panics.Panic) {
	if template, found := t.Informers.JobTemplates.Get(key.Namespace, key.Name); found {
		t.Informers.JobTemplates.SetApart(key.Namespace, key.Name, template.UID, p)
	}
}

// turn compares the status of a JobTemplate with its Jobs.
func (t *templates) turn(key types.NamespacedName) {
	template, found := t.Informers.JobTemplates.Get(key.Namespace, key.Name)
	if !found || template.DeletionTimestamp != nil || t.loop.Context().Err() != nil {
		t.loop.Drop(key)
		return
	}
	r := t.loop.Get(key)
	if r == nil || r.uid != template.UID {
		t.loop.Drop(key)
		r = &templateRecord{uid: template.UID}
		t.loop.Put(key, r)
	}
	t.loop.Deliver(key, r.uid)
	if informer.Older(template.ResourceVersion, r.version) || r.conflict && template.ResourceVersion == r.version {
		return // the watch will show a newer version
	}
	names := namesOf(t.Informers.Jobs.ByIndex(informer.JobsByTemplate, key.String()))
	if slices.Equal(names, template.Status.JobDependsOnList) {
		return
	}
	if left := statusLater - t.Clock.Since(r.written); left > 0 {
		t.loop.WakeAfter(key, left)
		return
	}
	data, err := json.Marshal([]apiwriter.PatchOp{{Op: "add", Path: "/status", Value: api.JobTemplateStatus{JobDependsOnList: names}}})
	if err != nil {
		return
	}
	r.written = t.Clock.Now()
	r.version, r.conflict = template.ResourceVersion, true // until the answer
	uid := r.uid
	t.Writer.PatchVersion(apiwriter.Meta{Owner: "jobtemplate/" + key.String(), Reason: "jobtemplate-status", StatusOnly: true}, template, false, data,
		func(got apiwriter.Object, err error) {
			t.loop.Post(key, uid, func(r *templateRecord) {
				switch {
				case err == nil:
					r.version, r.conflict = got.GetResourceVersion(), false
				case apierrors.IsConflict(err), apierrors.IsNotFound(err):
				default:
					r.version, r.conflict = "", false
				}
			})
		})
}

// namesOf returns the names of the Jobs that were created last, the oldest first.
func namesOf(jobs []*batch.Job) []string {
	slices.SortFunc(jobs, func(a, b *batch.Job) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	var names []string
	for _, j := range jobs[max(0, len(jobs)-listedJobs):] {
		names = append(names, j.Name)
	}
	return names
}
