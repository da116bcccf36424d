// Command static fails unless every given program is statically linked and so starts in an image
// without libraries.
package main

import (
	"fmt"
	"os"

	"lockstep.dev/lockstep/internal/localcluster/realnodes/ociimage"
)

func main() {
	for _, path := range os.Args[1:] {
		if err := ociimage.Static(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
