// Command static fails unless every program that it is given is static, and so starts in an image that has no library.
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
