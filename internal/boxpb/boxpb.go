// Package boxpb turns core's nouns into the messages of sbgw.box.v1 and back.
package boxpb

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/yaoapp/sbgw/core"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// FromRef makes a message of r.
func FromRef(r core.BoxRef) *boxv1.BoxRef {
	return &boxv1.BoxRef{Id: string(r.ID), Incarnation: string(r.Incarnation)}
}

// ToRef is the reverse of FromRef.
func ToRef(r *boxv1.BoxRef) core.BoxRef {
	return core.BoxRef{ID: core.BoxID(r.GetId()), Incarnation: core.Incarnation(r.GetIncarnation())}
}

// FromSpec makes a message of s.
func FromSpec(s core.BoxSpec) *boxv1.BoxSpec {
	return &boxv1.BoxSpec{
		Id: string(s.ID), Image: s.Image, Cmd: s.Cmd, Env: s.Env, WorkDir: s.WorkDir, User: s.User,
		Memory: s.Memory, Cpus: s.CPUs, Pids: s.PIDs, Vnc: s.VNC, Ports: FromPorts(s.Ports),
		Mounts: fromMounts(s.Mounts), Labels: maps.Clone(s.Labels), NotStarted: s.NotStarted,
	}
}

// ToSpec is the reverse of FromSpec.
func ToSpec(s *boxv1.BoxSpec) core.BoxSpec {
	return core.BoxSpec{
		ID: core.BoxID(s.GetId()), Image: s.GetImage(), Cmd: s.GetCmd(), Env: s.GetEnv(), WorkDir: s.GetWorkDir(),
		User: s.GetUser(), Memory: s.GetMemory(), CPUs: s.GetCpus(), PIDs: s.GetPids(), VNC: s.GetVnc(),
		Ports: ToPorts(s.GetPorts()), Mounts: toMounts(s.GetMounts()), Labels: s.GetLabels(), NotStarted: s.GetNotStarted(),
	}
}

// FromPorts makes messages of port mappings.
func FromPorts(ps []core.PortMapping) []*boxv1.Port {
	return mapped(ps, func(p core.PortMapping) *boxv1.Port {
		return &boxv1.Port{ContainerPort: uint32(p.ContainerPort), HostPort: uint32(p.HostPort), HostIp: p.HostIP, Protocol: p.Protocol}
	})
}

// ToPorts is the reverse of FromPorts.
func ToPorts(ps []*boxv1.Port) []core.PortMapping {
	return mapped(ps, func(p *boxv1.Port) core.PortMapping {
		return core.PortMapping{ContainerPort: int(p.GetContainerPort()), HostPort: int(p.GetHostPort()), HostIP: p.GetHostIp(), Protocol: p.GetProtocol()}
	})
}

func fromMounts(ms []core.VolumeMount) []*boxv1.VolumeMount {
	return mapped(ms, func(m core.VolumeMount) *boxv1.VolumeMount {
		return &boxv1.VolumeMount{Session: string(m.Session), Target: m.Target, ReadOnly: m.ReadOnly}
	})
}

func toMounts(ms []*boxv1.VolumeMount) []core.VolumeMount {
	return mapped(ms, func(m *boxv1.VolumeMount) core.VolumeMount {
		return core.VolumeMount{Session: core.VolumeSession(m.GetSession()), Target: m.GetTarget(), ReadOnly: m.GetReadOnly()}
	})
}

// statuses pairs the words of both sides.
var statuses = map[core.Status]boxv1.Status{
	core.StatusCreated: boxv1.Status_STATUS_CREATED,
	core.StatusRunning: boxv1.Status_STATUS_RUNNING,
	core.StatusStopped: boxv1.Status_STATUS_STOPPED,
	core.StatusPaused:  boxv1.Status_STATUS_PAUSED,
	core.StatusUnknown: boxv1.Status_STATUS_UNKNOWN,
}

// FromState makes a message of s.
func FromState(s core.BoxState) *boxv1.BoxState {
	m := &boxv1.BoxState{
		Id: string(s.ID), Incarnation: string(s.Incarnation), ContainerId: s.ContainerID, Status: statuses[s.Status],
		Reason: string(s.Reason), Image: s.Image, Labels: maps.Clone(s.Labels),
		CreatedAt: fromTime(s.CreatedAt), StartedAt: fromTime(s.StartedAt), FinishedAt: fromTime(s.FinishedAt),
		Execs: int32(s.Execs), Processes: int32(s.Processes), Ports: FromPorts(s.Ports), Ip: s.IP, Network: s.Network,
		Mounts: fromMounts(s.Mounts),
	}
	if s.ExitCode != nil {
		code := int32(*s.ExitCode)
		m.ExitCode = &code
	}
	return m
}

// ToState is the reverse of FromState. A status of a newer
// version is unknown, no message the zero BoxState.
func ToState(m *boxv1.BoxState) core.BoxState {
	if m == nil {
		return core.BoxState{}
	}
	s := core.BoxState{
		ID: core.BoxID(m.GetId()), Incarnation: core.Incarnation(m.GetIncarnation()), ContainerID: m.GetContainerId(),
		Status: core.StatusUnknown, Reason: core.Reason(m.GetReason()), Image: m.GetImage(), Labels: m.GetLabels(),
		CreatedAt: toTime(m.GetCreatedAt()), StartedAt: toTime(m.GetStartedAt()), FinishedAt: toTime(m.GetFinishedAt()),
		Execs: int(m.GetExecs()), Processes: int(m.GetProcesses()), Ports: ToPorts(m.GetPorts()), IP: m.GetIp(),
		Network: m.GetNetwork(), Mounts: toMounts(m.GetMounts()),
	}
	for word, number := range statuses {
		if number == m.GetStatus() {
			s.Status = word
		}
	}
	if m.ExitCode != nil {
		code := int(m.GetExitCode())
		s.ExitCode = &code
	}
	return s
}

// FromExecSpec makes a message of s.
func FromExecSpec(s core.ExecSpec) *boxv1.ExecStart {
	return &boxv1.ExecStart{
		Cmd: s.Cmd, Env: s.Env, Dir: s.Dir, User: s.User, Tty: s.TTY,
		Rows: uint32(s.Size.Rows), Cols: uint32(s.Size.Cols), Stdin: s.Stdin, NoEvent: s.NoEvent,
	}
}

// ToExecSpec is the reverse of FromExecSpec.
func ToExecSpec(m *boxv1.ExecStart) core.ExecSpec {
	return core.ExecSpec{
		Cmd: m.GetCmd(), Env: m.GetEnv(), Dir: m.GetDir(), User: m.GetUser(), TTY: m.GetTty(),
		Size: core.WindowSize{Rows: uint16(m.GetRows()), Cols: uint16(m.GetCols())}, Stdin: m.GetStdin(),
		NoEvent: m.GetNoEvent(),
	}
}

// FromEvent makes a message of e; the zero Event is nil.
func FromEvent(e core.Event) *boxv1.VolumeEvent {
	if e == (core.Event{}) {
		return nil
	}
	return &boxv1.VolumeEvent{Session: string(e.Session), BootId: []byte(e.Boot), Number: e.Number}
}

// ToEvent is the reverse of FromEvent.
func ToEvent(m *boxv1.VolumeEvent) core.Event {
	return core.Event{Session: core.VolumeSession(m.GetSession()), Boot: string(m.GetBootId()), Number: m.GetNumber()}
}

var endpointKinds = map[core.EndpointKind]boxv1.EndpointKind{
	core.EndpointDir:    boxv1.EndpointKind_ENDPOINT_KIND_DIR,
	core.EndpointUnix:   boxv1.EndpointKind_ENDPOINT_KIND_UNIX,
	core.EndpointTCP:    boxv1.EndpointKind_ENDPOINT_KIND_TCP,
	core.EndpointCmd:    boxv1.EndpointKind_ENDPOINT_KIND_CMD,
	core.EndpointBridge: boxv1.EndpointKind_ENDPOINT_KIND_BRIDGE,
}

// FromEndpoint makes a message of e.
func FromEndpoint(e core.Endpoint) *boxv1.Endpoint {
	return &boxv1.Endpoint{
		Kind: endpointKinds[e.Kind], Address: e.Address, Argv: slices.Clone(e.Argv), Session: string(e.Session),
		Token: e.Token, ReadOnly: e.ReadOnly, Instance: e.Instance,
	}
}

// ToEndpoint is the reverse of FromEndpoint.
func ToEndpoint(m *boxv1.Endpoint) core.Endpoint {
	e := core.Endpoint{
		Address: m.GetAddress(), Argv: m.GetArgv(), Session: core.VolumeSession(m.GetSession()),
		Token: m.GetToken(), ReadOnly: m.GetReadOnly(), Instance: m.GetInstance(),
	}
	for word, number := range endpointKinds {
		if number == m.GetKind() {
			e.Kind = word
		}
	}
	return e
}

func fromTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func toTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func mapped[A, B any](in []A, f func(A) B) []B {
	if in == nil {
		return nil
	}
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = f(v)
	}
	return out
}
