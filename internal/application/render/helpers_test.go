package render_test

import "k8s.io/apimachinery/pkg/runtime"

func raw(e *runtime.RawExtension) []byte {
	if e == nil {
		return nil
	}
	return e.Raw
}
