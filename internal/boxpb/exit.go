package boxpb

import (
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// FromExit makes a message of a process's end, with the error beside it, if any.
func FromExit(e core.ExecExit, err error) *boxv1.ExecExit {
	m := &boxv1.ExecExit{Code: int32(e.Code), Reason: string(e.Reason), Event: FromEvent(e.Event)}
	if err != nil {
		m.Warning = grpcerr.Detail(err)
	}
	return m
}

// ToExit is the reverse of FromExit. An end that nobody saw is ErrExitUnknown.
func ToExit(m *boxv1.ExecExit) (core.ExecExit, error) {
	e := core.ExecExit{Code: int(m.GetCode()), Reason: core.Reason(m.GetReason()), Event: ToEvent(m.GetEvent())}
	if e.Reason == core.ReasonUnknown {
		return core.ExecExit{}, core.ErrExitUnknown
	}
	if m.GetWarning() != nil {
		return e, grpcerr.FromDetail(m.GetWarning())
	}
	return e, nil
}
