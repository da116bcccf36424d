package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/external"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// externalReads answers the questions that an Application's plans ask other systems. Each question
// is asked once per deployment: the answer holds until the Application changes or is deployed
// again. Until there is an answer, planning fails with plan.ErrNotYet and is repeated.
type externalReads struct {
	p *Planner
	a *State
}

// ListMax bounds the number of objects that one list returns to a plan or a step.
const ListMax = 500

// ErrAskedAgain marks the error of a question that is asked again.
var ErrAskedAgain = errors.New("it is asked for again")

// read returns the answer to a question, or starts asking it. After an error the question is asked
// again.
func (q externalReads) read(question any, ask func(ctx context.Context) (any, error)) (any, error) {
	data, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	if q.a.External == nil {
		q.a.External = Answers{}
	}
	x := q.p.Ask(q.a, q.a.External, fmt.Sprintf("%T %s", question, data), func() (any, error) {
		ctx, cancel := context.WithTimeout(q.p.Ctx(), external.RequestTimeout)
		defer cancel()
		return ask(ctx)
	})
	switch {
	case x.Err != nil: // until there is a new answer
		q.p.Repeat(q.a, x, RepeatFirst)
		return nil, fmt.Errorf("%w: %w", x.Err, ErrAskedAgain)
	case !x.Known:
		return nil, plan.ErrNotYet
	}
	return x.Value, nil
}

// Reads returns the reader that answers the questions of an Application's plan.
func (p *Planner) Reads(a *State) plan.ExternalReader { return externalReads{p, a} }

// Objects implements plan.ExternalReader.
func (q externalReads) Objects(namespace string, ref *plan.ObjectReference) ([]map[string]any, error) {
	cluster := ref.Cluster
	if cluster == oam.LocalCluster {
		cluster = ""
	}
	t, err := q.p.Targets.Reach(cluster)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrAskedAgain)
	}
	m, err := t.Kinds.Named(ref.Resource, ref.Group, ref.Kind)
	if err != nil {
		return nil, err
	}
	namespaced := m.Scope.Name() == meta.RESTScopeNameNamespace
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	if !namespaced {
		namespace = ""
	}
	if err := q.p.MayReachNamespace(q.a, namespace, namespaced); err != nil {
		return nil, err
	}
	as := q.a.As
	value, err := q.read(*ref, func(ctx context.Context) (any, error) {
		client, err := t.Reader(as)
		if err != nil {
			return nil, err
		}
		at := client.Resource(m.Resource).Namespace(namespace)
		if ref.Name != "" {
			u, err := at.Get(ctx, ref.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return []map[string]any{u.Object}, nil
		}
		list, err := at.List(ctx, metav1.ListOptions{LabelSelector: labels.Set(ref.LabelSelector).String(), Limit: ListMax})
		switch {
		case err != nil:
			return nil, err
		case len(list.Items) == 0:
			return nil, fmt.Errorf("there are no %s with the labels %s", m.Resource.Resource, labels.Set(ref.LabelSelector))
		case list.GetContinue() != "":
			return nil, fmt.Errorf("more than %d %s have the labels %s", ListMax, m.Resource.Resource, labels.Set(ref.LabelSelector))
		}
		var out []map[string]any
		for i := range list.Items {
			list.Items[i].SetGroupVersionKind(m.GroupVersionKind) // lists may leave it out
			out = append(out, list.Items[i].Object)
		}
		return out, nil
	})
	return objectsOf(value), err
}

func objectsOf(value any) []map[string]any {
	out, _ := value.([]map[string]any)
	return out
}

// address is the question for the manifests at a URL.
type address string

// Manifests implements plan.ExternalReader.
func (q externalReads) Manifests(url string) ([]map[string]any, error) {
	value, err := q.read(address(url), func(ctx context.Context) (any, error) {
		body, err := q.p.Requests.Body(ctx, &render.HTTPRequest{URL: url})
		if err != nil {
			return nil, err
		}
		q.p.reading.Lock() // parsing takes many times the text's size in memory
		defer q.p.reading.Unlock()
		if err := yamldoc.Check(body, external.ResponseBytesMax, "the answer of "+url); err != nil {
			return nil, err
		}
		var out []map[string]any
		for docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(body), 4096); len(out) <= ListMax; {
			var o map[string]any
			if err := docs.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil { // the error would quote the text
				return nil, fmt.Errorf("manifest %d of %s is no object in YAML or JSON", len(out)+1, url)
			}
			if u := (unstructured.Unstructured{Object: o}); len(o) > 0 {
				if u.GetKind() == "" || u.GetAPIVersion() == "" || u.GetName() == "" {
					return nil, fmt.Errorf("manifest %d has no apiVersion, no kind or no name", len(out)+1)
				}
				out = append(out, o)
			}
		}
		if len(out) == 0 || len(out) > ListMax {
			return nil, fmt.Errorf("it has %d manifests; one to %d are possible", len(out), ListMax)
		}
		return out, nil
	})
	return objectsOf(value), err
}

// Request implements plan.ExternalReader.
func (q externalReads) Request(_ string, r *render.HTTPRequest) (map[string]any, error) {
	value, err := q.read(*r, func(ctx context.Context) (any, error) {
		body, err := q.p.Requests.Body(ctx, r)
		if err != nil {
			return nil, err
		}
		var out map[string]any
		if err := kjson.Unmarshal(body, &out); err != nil {
			return nil, fmt.Errorf("the answer of %s is not a struct in JSON", r.URL)
		}
		return out, nil
	})
	out, _ := value.(map[string]any)
	return out, err
}
