package localtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster"
)

// NoPostgres is why a test is skipped for which Postgres returns "".
const NoPostgres = "PostgreSQL is not installed, and LOCKSTEP_TEST_POSTGRES is not set"

// postgresStart bounds the start of a server.
const postgresStart = time.Minute

// database is the server of Postgres.
var database struct {
	once   sync.Once
	source string
	stop   func()
	err    error
}

// Postgres returns the URL, with a parameter, of a PostgreSQL database: of the one that
// $LOCKSTEP_TEST_POSTGRES names, else of a server that the first caller starts, where PostgreSQL is
// installed. Elsewhere it returns "". All tests of a package have the same database. The package's
// TestMain must call Main.
func Postgres(t testing.TB) string {
	t.Helper()
	if source := os.Getenv("LOCKSTEP_TEST_POSTGRES"); source != "" {
		return source
	}
	database.once.Do(func() {
		if bin := postgresPrograms(); bin != "" {
			database.source, database.stop, database.err = startPostgres(bin)
		}
	})
	if database.err != nil {
		t.Fatal(database.err)
	}
	return database.source
}

// postgresPrograms returns the directory of the newest programs of PostgreSQL, or "".
func postgresPrograms() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(slices.Max(found))
}

// startPostgres starts a server without fsync that ends with this process, however that ends.
func startPostgres(bin string) (source string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "lockstep-postgres-")
	if err != nil {
		return "", nil, err
	}
	port, release, err := localcluster.LeasePort()
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	clean := func() {
		release()
		_ = os.RemoveAll(dir)
	}
	fail := func(err error) (string, func(), error) {
		clean()
		return "", nil, fmt.Errorf("PostgreSQL of tests: %w", err)
	}
	as := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 { // it refuses to run as root
		if as.Credential, err = unprivileged(); err == nil {
			err = os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid))
		}
		if err != nil {
			return fail(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), postgresStart)
	defer cancel()
	run := func(program string, args ...string) error {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as.Credential}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", program, err, out)
		}
		return nil
	}
	data := filepath.Join(dir, "data")
	if err := run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"); err != nil {
		return fail(err)
	}
	var log bytes.Buffer
	server := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", "", "-F")
	server.Dir, server.SysProcAttr, server.Stdout, server.Stderr = dir, as, &log, &log
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the kernel kills the server when the thread ends that started it
		err := server.Start()
		started <- err
		if err == nil {
			_ = server.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return fail(err)
	}
	stop = func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		<-ended
		clean()
	}
	for run("pg_isready", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(port)) != nil {
		select {
		case <-ended:
			return fail(fmt.Errorf("it ended: %s", &log))
		case <-ctx.Done():
			stop()
			return "", nil, fmt.Errorf("PostgreSQL of tests: not ready within %s: %s", postgresStart, &log)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port), stop, nil
}

// unprivileged returns the user postgres, or nobody.
func unprivileged() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
