package workspace

import (
	"errors"
	"fmt"
)

// The kinds of error that workspaces need; package core has them under the same
// names.
var (
	ErrNotFound     = errors.New("sandbox: not found")
	ErrInvalid      = errors.New("sandbox: invalid")
	ErrConflict     = errors.New("sandbox: conflict")
	ErrPoolNotFound = errors.New("sandbox: pool not found")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
