package core

import (
	"errors"
	"fmt"

	"github.com/yaoapp/sbgw/workspace"
)

// The kinds of error. They are few, only added to, and keep their identity over
// every wire (internal/grpcerr), so errors.Is works on both sides.
var (
	// ErrNotAvailable: the manager is not started, closed, or has no pool.
	ErrNotAvailable = errors.New("sandbox: not available (no pools configured)")
	// ErrNotFound: no such box or workspace, or not the caller's.
	ErrNotFound = workspace.ErrNotFound
	// ErrLimitExceeded: a limit of the pool would be passed.
	ErrLimitExceeded = errors.New("sandbox: limit exceeded")
	// ErrPoolNotFound: no such pool.
	ErrPoolNotFound = workspace.ErrPoolNotFound
	// ErrPoolInUse: the pool has boxes.
	ErrPoolInUse = errors.New("sandbox: pool has running boxes")
	// ErrUnsupported: this backend can't do that; the message names what.
	ErrUnsupported = errors.New("sandbox: not supported")
	// ErrInvalid: the request itself is wrong; the message says how to mend it.
	ErrInvalid = workspace.ErrInvalid
	// ErrConflict: it exists otherwise, is in use, or is another incarnation.
	ErrConflict = workspace.ErrConflict
	// ErrNotRunning: the box is not running.
	ErrNotRunning = errors.New("sandbox: not running")
	// ErrUnavailable: the backend or node does not answer now; try again later.
	ErrUnavailable = errors.New("sandbox: unavailable")
	// ErrPluginGone: the plugin process died during the call.
	ErrPluginGone = errors.New("sandbox: plugin process gone")
	// ErrBarrier: files and commands could not be put in order in time. Before a
	// command: it was not started. After: the result is beside it.
	ErrBarrier = errors.New("sandbox: barrier not reached")
	// ErrExitUnknown: the process ended, and nobody saw how.
	ErrExitUnknown = errors.New("sandbox: exit status unknown")
	// ErrPermission: the operating system or a policy refuses.
	ErrPermission = errors.New("sandbox: permission denied")
)

// Unsupported returns an ErrUnsupported that names what is not supported.
func Unsupported(what string) error { return fmt.Errorf("%w: %s", ErrUnsupported, what) }

// Invalid returns an ErrInvalid with a message.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
