package executor

import (
	"errors"
	"io"
	"os"
)

// Install copies a program, such as this one, to where the pod's containers find it.
func Install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	// The mode again, for it does not depend on the image's umask which user may run the program.
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}
