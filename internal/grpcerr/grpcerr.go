// Package grpcerr is the one table between core's kinds of error and gRPC
// status codes. To makes a status at a server's edge, From makes an error at a
// client's; a kind survives any number of such edges.
package grpcerr

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yaoapp/sbgw/core"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// table is append-only: names and codes are seen by other versions.
var table = []struct {
	kind error
	name string
	code codes.Code
}{
	{core.ErrNotAvailable, "not-available", codes.FailedPrecondition},
	{core.ErrNotFound, "not-found", codes.NotFound},
	{core.ErrLimitExceeded, "limit-exceeded", codes.ResourceExhausted},
	{core.ErrPoolNotFound, "pool-not-found", codes.NotFound},
	{core.ErrPoolInUse, "pool-in-use", codes.FailedPrecondition},
	{core.ErrUnsupported, "unsupported", codes.Unimplemented},
	{core.ErrInvalid, "invalid", codes.InvalidArgument},
	{core.ErrConflict, "conflict", codes.AlreadyExists},
	{core.ErrNotRunning, "not-running", codes.FailedPrecondition},
	{core.ErrUnavailable, "unavailable", codes.Unavailable},
	{core.ErrPluginGone, "plugin-gone", codes.Aborted},
	{core.ErrBarrier, "barrier", codes.DeadlineExceeded},
	{core.ErrExitUnknown, "exit-unknown", codes.DataLoss},
	{core.ErrPermission, "permission", codes.PermissionDenied},
	{context.Canceled, "canceled", codes.Canceled},
	{context.DeadlineExceeded, "deadline", codes.DeadlineExceeded},
}

// To returns err as a gRPC status error with its kind attached; nil stays nil
// and a status stays as it is.
func To(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	for _, row := range table {
		if !errors.Is(err, row.kind) {
			continue
		}
		st := status.New(row.code, err.Error())
		if withKind, derr := st.WithDetails(&boxv1.ErrorDetail{Kind: row.name}); derr == nil {
			st = withKind
		}
		return st.Err()
	}
	return status.Error(codes.Unknown, err.Error())
}

// Detail returns err as the message that carries kind and text outside of a
// status.
func Detail(err error) *boxv1.ErrorDetail {
	d := &boxv1.ErrorDetail{Op: err.Error()}
	for _, row := range table {
		if errors.Is(err, row.kind) {
			d.Kind = row.name
			return d
		}
	}
	return d
}

// FromDetail is the reverse of Detail.
func FromDetail(d *boxv1.ErrorDetail) error {
	return &wireError{text: d.GetOp(), kind: kindNamed(d.GetKind())}
}

// From returns a status error from a call as an error of its kind, with the
// text of the other side; nil stays nil. A transport that broke is
// ErrUnavailable, unless broken names another kind for that.
func From(err error, broken ...error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if ed, ok := d.(*boxv1.ErrorDetail); ok {
			if kind := kindNamed(ed.GetKind()); kind != nil {
				return &wireError{text: st.Message(), kind: kind}
			}
		}
	}
	switch st.Code() {
	case codes.Canceled:
		return fmt.Errorf("%w: %s", context.Canceled, st.Message())
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, st.Message())
	case codes.Unavailable:
		kind := core.ErrUnavailable
		if len(broken) > 0 {
			kind = broken[0]
		}
		return &wireError{text: kind.Error() + ": " + st.Message(), kind: kind}
	case codes.Unimplemented:
		return &wireError{text: st.Message(), kind: core.ErrUnsupported}
	}
	return errors.New(st.Message())
}

func kindNamed(name string) error {
	for _, row := range table {
		if row.name == name {
			return row.kind
		}
	}
	return nil
}

// wireError has the other side's text, which tells its kind already.
type wireError struct {
	text string
	kind error
}

func (e *wireError) Error() string { return e.text }
func (e *wireError) Unwrap() error { return e.kind }
