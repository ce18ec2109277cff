package grpcerr

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yaoapp/sbgw/core"
)

func TestKindsSurviveTwoEdges(t *testing.T) {
	for _, row := range table {
		err := fmt.Errorf("create box b7: %w: why", row.kind)
		for edge := range 2 {
			err = From(To(err))
			if !errors.Is(err, row.kind) || err.Error() != fmt.Sprintf("create box b7: %v: why", row.kind) {
				t.Errorf("%s after edge %d: %v", row.name, edge+1, err)
			}
		}
		for _, other := range table {
			if other.kind != row.kind && errors.Is(err, other.kind) {
				t.Errorf("%s is also %s", row.name, other.name)
			}
		}
		if err := FromDetail(Detail(err)); !errors.Is(err, row.kind) {
			t.Errorf("%s as a detail: %v", row.name, err)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, row := range table {
		if seen[row.name] {
			t.Errorf("two kinds are called %s", row.name)
		}
		seen[row.name] = true
	}
}

func TestForeignStatuses(t *testing.T) {
	broken := status.Error(codes.Unavailable, "connection refused")
	for name, c := range map[string]struct{ got, want error }{
		"no error":                {From(nil), nil},
		"broken transport":        {From(broken), core.ErrUnavailable},
		"broken plugin transport": {From(broken, core.ErrPluginGone), core.ErrPluginGone},
		"unknown method":          {From(status.Error(codes.Unimplemented, "unknown method")), core.ErrUnsupported},
		"deadline":                {From(status.Error(codes.DeadlineExceeded, "x")), context.DeadlineExceeded},
		"canceled":                {From(status.Error(codes.Canceled, "x")), context.Canceled},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if err := From(status.Error(codes.Internal, "text")); err == nil || err.Error() != "text" {
		t.Errorf("a status without kind = %v, want its text", err)
	}
}
