package informer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Versions holds the resource versions of objects at one moment.
type Versions struct {
	// At is the resource version of that moment: later writes have a higher one.
	At string
	// Of maps UID to resource version.
	Of map[types.UID]string
}

// versionsPage is the number of objects per page of a list.
const versionsPage = 1000

// Versions reads from the server the current resource versions of the objects whose labels match
// selector, independent of how far the watch lags. It reads only metadata.
func (i *Informer[T]) Versions(ctx context.Context, selector string) (Versions, error) {
	out := Versions{Of: map[types.UID]string{}}
	// With no resourceVersion, a list returns the most recent data.
	o := metav1.ListOptions{LabelSelector: selector, FieldSelector: i.options.Fields, Limit: versionsPage}
	for {
		data, err := i.options.get(i.client, i.resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
		if err != nil {
			return Versions{}, fmt.Errorf("versions of %s: %w", i.resource, err)
		}
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []struct {
				Metadata struct {
					UID             types.UID `json:"uid"`
					ResourceVersion string    `json:"resourceVersion"`
				} `json:"metadata"`
			} `json:"items"`
		}
		if err := json.Unmarshal(data, &page); err != nil {
			return Versions{}, fmt.Errorf("versions of %s: %w", i.resource, err)
		}
		out.At = cmp.Or(out.At, page.Metadata.ResourceVersion)
		for _, item := range page.Items {
			out.Of[item.Metadata.UID] = item.Metadata.ResourceVersion
		}
		if o.Continue = page.Metadata.Continue; o.Continue == "" {
			return out, nil
		}
	}
}
