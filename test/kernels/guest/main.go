// Command guest is the first process of a virtual machine that runs tests. It mounts the kernel's
// file systems, runs every program in /tests, writes the results to the console, and switches the
// machine off. As "sleep" it waits, because the tests start processes of that name. It may also be a
// service of systemd, which has mounted the file systems then.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if filepath.Base(os.Args[0]) == "sleep" {
		time.Sleep(time.Hour)
		return
	}
	if err := run(); err != nil {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	fmt.Println("guest: switching off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

func run() error {
	if os.Getpid() == 1 {
		if err := mount(); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Setenv("PATH", "/bin"), os.Setenv("LOCKSTEP_HOTPLUG", "1")); err != nil {
		return err
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	fmt.Println("guest: kernel", unix.ByteSliceToString(name.Release[:]))
	tests, err := filepath.Glob("/tests/*")
	if err != nil {
		return err
	}
	for _, test := range tests {
		fmt.Println("guest: run", filepath.Base(test))
		cmd := exec.Command(test, os.Args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = "/tmp", os.Stdout, os.Stdout
		result := "passed"
		if err := cmd.Run(); err != nil {
			result = "failed: " + err.Error()
		}
		fmt.Println("guest: result of", filepath.Base(test), result)
	}
	return nil
}

func mount() error {
	for _, m := range []struct{ kind, dir string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"cgroup2", "/sys/fs/cgroup"}} {
		if err := errors.Join(os.MkdirAll(m.dir, 0o755), unix.Mount(m.kind, m.dir, m.kind, 0, "")); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return nil
}
