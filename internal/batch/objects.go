package batch

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/batch/pods"
)

// ownedObject is an object of a plugin or volume that exists or is being written.
type ownedObject struct {
	writing bool
	// object is the object as last written.
	object apiwriter.Object
}

// ensureObjects writes the objects that the job's plugins and volumes need, and reports whether
// they all exist.
func (c *Controller) ensureObjects(r *record) bool {
	ready := true
	for _, o := range r.set.Objects() {
		key := fmt.Sprintf("%T/%s", o.Object, o.Object.GetName())
		e := r.objects[key]
		switch {
		case e == nil:
			e = &ownedObject{}
			r.objects[key] = e
			c.createObject(r, key, e, o)
		case e.writing:
		case !sameContent(e.object, o.Object):
			c.updateObject(r, key, e, o)
		}
		ready = ready && !e.writing
	}
	if ready {
		r.changed = false
	}
	return ready
}

func (c *Controller) createObject(r *record, key string, e *ownedObject, o pods.Object) {
	e.writing = true
	meta, done := c.objectMeta(r, o), c.objectWritten(r, key, o)
	if !pods.LacksKeys(o) {
		c.Writer.Create(meta, o.Object, done)
		return
	}
	c.keys.ask(func(private, public []byte, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		c.Writer.Create(meta, pods.WithKeys(o, private, public).Object, done)
	})
}

// updateObject rewrites the names of the job's pods, the only content that depends on the job's
// size.
func (c *Controller) updateObject(r *record, key string, e *ownedObject, o pods.Object) {
	data, err := json.Marshal(map[string]any{"data": pods.Names(o.Object)})
	if err != nil {
		panic(err) // strings always have an encoding
	}
	e.writing = true
	target := o.Object.DeepCopyObject().(apiwriter.Object)
	target.SetUID(e.object.GetUID())
	c.Writer.Patch(c.objectMeta(r, o), target, types.MergePatchType, data, c.objectWritten(r, key, o))
}

func (c *Controller) objectMeta(r *record, o pods.Object) apiwriter.Meta {
	reason := o.Key
	if _, ok := o.Object.(*corev1.PersistentVolumeClaim); ok {
		reason = "job-volume"
	}
	return apiwriter.Meta{Owner: gangKey(r.key), Reason: reason, ReadFirst: r.resumed}
}

func (c *Controller) objectWritten(r *record, key string, o pods.Object) func(apiwriter.Object, error) {
	jobKey, uid := r.key, r.uid
	return func(stored apiwriter.Object, err error) {
		c.loop.Post(jobKey, uid, func(r *record) {
			e := r.objects[key]
			e.writing = false
			if err != nil {
				delete(r.objects, key)
				c.refuse(r, reasonPlugin, fmt.Errorf("%s %s: %s", o.Key, o.Object.GetName(), plain(err)))
				return
			}
			e.object = remembered(stored)
		})
	}
}

// remembered returns the part of a written object that the record keeps: for a Secret, only what
// sameContent compares.
func remembered(o apiwriter.Object) apiwriter.Object {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return o
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{UID: secret.UID}, Data: pods.NamesOnly(secret)}
}

// sameContent reports whether the existing object has the wanted content. Only the names of the
// job's pods can change.
func sameContent(have, want apiwriter.Object) bool {
	a, b := pods.Names(have), pods.Names(want)
	return a == nil || b == nil || maps.Equal(a, b)
}
