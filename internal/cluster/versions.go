package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Versions are the resource versions that objects had at one moment.
type Versions struct {
	// At is the version of that moment: what was written later has a higher one.
	At string
	// Of has the versions by UID.
	Of map[types.UID]string
}

// versionsPage is how many objects are read at a time.
const versionsPage = 1000

// metadataLists asks for the metadata of what is listed.
const metadataLists = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Versions asks the server for the versions of the objects whose labels match selector: as they are now, however far the watch
// may be behind. Only metadata is read.
func (k *Kind[T]) Versions(ctx context.Context, selector string) (Versions, error) {
	out := Versions{Of: map[types.UID]string{}}
	// Without a version of its own a list is of what was written last.
	o := metav1.ListOptions{LabelSelector: selector, FieldSelector: k.selected.fields, Limit: versionsPage}
	for {
		data, err := k.selected.get(k.client, k.resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).
			SetHeader("Accept", metadataLists).Do(ctx).Raw()
		if err != nil {
			return Versions{}, fmt.Errorf("versions of %s: %w", k.resource, err)
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
			return Versions{}, fmt.Errorf("versions of %s: %w", k.resource, err)
		}
		if out.At == "" {
			out.At = page.Metadata.ResourceVersion
		}
		for _, item := range page.Items {
			out.Of[item.Metadata.UID] = item.Metadata.ResourceVersion
		}
		if o.Continue = page.Metadata.Continue; o.Continue == "" {
			return out, nil
		}
	}
}
