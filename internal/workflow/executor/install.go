package executor

import (
	"errors"
	"io"
	"os"
)

// Install copies a program, such as this one, to a path that the pod's containers can read.
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
	// Unlike OpenFile, Chmod ignores the umask of the image, so that every user can run the
	// program.
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}
