package boxpb

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// same fails where a value with every field set does not survive the messages.
func same[T any](t *testing.T, there func(T) T, v T) {
	t.Helper()
	if diff := cmp.Diff(v, there(v)); diff != "" {
		t.Errorf("%T (-before +after):\n%s", v, diff)
	}
}

func TestRoundTrips(t *testing.T) {
	code := 3
	at := time.Unix(1700000000, 123).UTC()
	ports := []core.PortMapping{{ContainerPort: 1, HostPort: 2, HostIP: "127.0.0.1", Protocol: "udp"}}
	mounts := []core.VolumeMount{{Session: "s", Target: "/w", ReadOnly: true}}
	same(t, func(s core.BoxSpec) core.BoxSpec { return ToSpec(FromSpec(s)) }, core.BoxSpec{
		ID: "b", Image: "i", Cmd: []string{"c"}, Env: []string{"A=1"}, WorkDir: "/w", User: "u", Memory: 1, CPUs: 1.5, PIDs: 2,
		VNC: true, Ports: ports, Mounts: mounts, Labels: map[string]string{"k": "v"}, NotStarted: true,
	})
	same(t, func(s core.BoxState) core.BoxState { return ToState(FromState(s)) }, core.BoxState{
		ID: "b", Incarnation: "n", ContainerID: "c", Status: core.StatusStopped, Reason: core.ReasonOOM, ExitCode: &code,
		Image: "i", Labels: map[string]string{"k": "v"}, CreatedAt: at, StartedAt: at, FinishedAt: at, Execs: 1,
		Processes: 2, Ports: ports, IP: "10.0.0.1", Network: "none", Mounts: mounts,
	})
	same(t, func(s core.ExecSpec) core.ExecSpec { return ToExecSpec(FromExecSpec(s)) }, core.ExecSpec{
		Cmd: []string{"c"}, Env: []string{"A=1"}, Dir: "/d", User: "u", TTY: true, Size: core.WindowSize{Rows: 1, Cols: 2}, Stdin: true, NoEvent: true,
	})
	same(t, func(e core.Endpoint) core.Endpoint { return ToEndpoint(FromEndpoint(e)) }, core.Endpoint{
		Kind: core.EndpointCmd, Address: "a", Argv: []string{"x"}, Session: "s", Token: []byte("t"), ReadOnly: true, Instance: "i",
	})
	same(t, func(r core.BoxRef) core.BoxRef { return ToRef(FromRef(r)) }, core.BoxRef{ID: "b", Incarnation: "n"})
	same(t, func(e core.Event) core.Event { return ToEvent(FromEvent(e)) }, core.Event{Session: "s", Boot: "b", Number: 7})
	same(t, func(e core.Event) core.Event { return ToEvent(FromEvent(e)) }, core.Event{})
	if got := ToState(nil); got.ID != "" {
		t.Errorf("no message = %+v, want the zero state", got)
	}
	if got := ToState(&boxv1.BoxState{Status: 99}).Status; got != core.StatusUnknown {
		t.Errorf("a status of a newer version = %q, want unknown", got)
	}
}

func TestExits(t *testing.T) {
	exit := core.ExecExit{Code: 5, Reason: core.ReasonExited, Event: core.Event{Boot: "b", Number: 1}}
	if got, err := ToExit(FromExit(exit, nil)); got != exit || err != nil {
		t.Errorf("exit = %+v, %v", got, err)
	}
	if got, err := ToExit(FromExit(exit, core.ErrBarrier)); got != exit || !errors.Is(err, core.ErrBarrier) {
		t.Errorf("exit with a barrier not reached = %+v, %v; want both", got, err)
	}
	unseen := core.ExecExit{Code: 0, Reason: core.ReasonUnknown}
	if got, err := ToExit(FromExit(unseen, nil)); got != (core.ExecExit{}) || !errors.Is(err, core.ErrExitUnknown) {
		t.Errorf("an end that nobody saw = %+v, %v; want ErrExitUnknown", got, err)
	}
}
