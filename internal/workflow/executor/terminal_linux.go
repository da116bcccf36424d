package executor

import (
	"os"
	"syscall"
	"unsafe"
)

// isTerminal reports whether the file is a terminal.
func isTerminal(f *os.File) bool {
	var settings syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}
