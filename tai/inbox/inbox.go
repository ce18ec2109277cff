// Package inbox is what tai does inside of a box: Init is the main process of a
// box that has none of its own, Exec is the last step of every command on its
// way into the box.
package inbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes of commands that could not be started, as shells use them.
const (
	codeCannotRun = 126
	codeNotFound  = 127
)

// Init keeps a box alive: it reaps every process that is left to it and returns
// on SIGTERM or SIGINT. It must be process 1 of its pid namespace.
func Init() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT)
	for sig := range signals {
		if sig != unix.SIGCHLD {
			return
		}
		reap()
	}
}

func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

// Error is a command that could not be started, with the exit code for it.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Exec replaces this process with a command: it changes to dir, looks the name up
// in the PATH of the environment and executes it. It returns only on failure,
// with an *Error.
func Exec(dir string, argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return &Error{codeCannotRun, errors.New("empty command")}
	}
	if err := os.Chdir(dir); err != nil {
		return &Error{codeCannotRun, fmt.Errorf("working directory %s: %w", dir, reason(err))}
	}
	path, err := lookPath(argv[0], os.Getenv("PATH"))
	if err != nil {
		return err
	}
	err = syscall.Exec(path, argv, os.Environ())
	code := codeCannotRun
	if err == unix.ENOENT { // a script whose interpreter is missing
		code = codeNotFound
	}
	return &Error{code, fmt.Errorf("%s: %w", argv[0], err)}
}

// lookPath finds a command as execvp(3) does: a name with a slash is a path, the
// first executable file wins, and one that is there but not executable is told
// apart from none at all.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name, name)
	}
	missing := error(&Error{codeNotFound, fmt.Errorf("%s: not found", name)})
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if dir == "" || dir == "." {
			file = "./" + name
		}
		err := executable(name, file)
		if err == nil {
			return file, nil
		}
		if e := (*Error)(nil); errors.As(err, &e) && e.Code == codeCannotRun {
			missing = err
		}
	}
	return "", missing
}

// executable tells whether file can be executed by this process, else why not.
func executable(name, file string) error {
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return &Error{codeNotFound, fmt.Errorf("%s: not found", name)}
	case err != nil:
		return &Error{codeCannotRun, fmt.Errorf("%s: %w", name, reason(err))}
	case st.IsDir():
		return &Error{codeCannotRun, fmt.Errorf("%s: is a directory", name)}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
		return &Error{codeCannotRun, fmt.Errorf("%s: %w", name, err)}
	}
	return nil
}

// reason takes the operation and path off an error of package os.
func reason(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
