package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/yaoapp/sbgw/core"
)

// The exit codes. docs/cli.md documents them; exec and run exit with the code of
// the command otherwise.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnavailable = 4
	exitConflict    = 5
	exitLimit       = 6
	exitUnsupported = 7
	exitPermission  = 8
	exitTimeout     = 124
	exitNotStarted  = 125 // exec or run failed before the command ran
)

// exits maps kinds of error to exit codes; the first that matches counts.
var exits = []struct {
	kind error
	code int
}{
	{core.ErrInvalid, exitUsage},
	{core.ErrPermission, exitPermission},
	{fs.ErrPermission, exitPermission},
	{core.ErrNotFound, exitNotFound},
	{core.ErrPoolNotFound, exitNotFound},
	{core.ErrUnavailable, exitUnavailable},
	{core.ErrNotAvailable, exitUnavailable},
	{core.ErrPluginGone, exitUnavailable},
	{core.ErrConflict, exitConflict},
	{core.ErrPoolInUse, exitConflict},
	{core.ErrNotRunning, exitConflict},
	{core.ErrLimitExceeded, exitLimit},
	{core.ErrUnsupported, exitUnsupported},
	{context.DeadlineExceeded, exitTimeout},
}

// exitCode returns the code that a command's error ends the process with.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitStatus](err); ok {
		return e.code
	}
	for _, x := range exits {
		if errors.Is(err, x.kind) {
			return x.code
		}
	}
	return exitError
}

// messageOf returns what to say of an error; a command's own code says it all.
func messageOf(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*exitStatus](err); ok && e.err == nil {
		return ""
	}
	return err.Error()
}

// exitStatus is an error with an exit code of its own; without err, only that.
type exitStatus struct {
	code int
	err  error
}

func (e *exitStatus) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitStatus) Unwrap() error { return e.err }

// usage returns an error of wrong usage.
func usage(format string, args ...any) error {
	return &exitStatus{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// notStarted marks an error of exec or run that is no command's. What the caller
// asked for wrongly keeps its own code, and so does a time-out.
func notStarted(err error) error {
	if err == nil || errors.Is(err, core.ErrInvalid) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[*exitStatus](err); ok {
		return err
	}
	return &exitStatus{code: exitNotStarted, err: err}
}
