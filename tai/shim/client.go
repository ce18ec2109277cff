package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/procstream"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// Spawn starts the shim of the configuration in dir and returns when the box
// runs, or why it does not; then nothing is left of the start. The shim shares
// nothing with this process and outlives it. If the context ends first, the shim
// is told to end.
func Spawn(ctx context.Context, dir, binary string) (*os.Process, error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	proc, err := startProcess(dir, binary, theirs)
	theirs.Close()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { terminate(proc) })
	defer stop()

	reply := &boxv1.ErrorDetail{}
	err = json.NewDecoder(ours).Decode(reply)
	switch {
	case err != nil:
		err = fmt.Errorf("shim ended without an answer, see %s: %w", filepath.Join(dir, shimLog), err)
	case reply.GetOp() != "":
		err = grpcerr.FromDetail(reply)
	default:
		return proc, nil
	}
	proc.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, err
}

// Link is a node's connection to a shim.
type Link struct {
	conn *net.UnixConn
	in   *json.Decoder

	mu sync.Mutex // one Write at a time
}

// Dial connects to the shim of dir. Without a living shim it is an error at once.
func Dial(dir string) (*Link, error) {
	conn, err := dial(dir, ctlSocket)
	if err != nil {
		return nil, err
	}
	return &Link{conn: conn, in: json.NewDecoder(conn)}, nil
}

// Next returns the present status, later each change. The last one has an Exit;
// an error without it is a shim that died.
func (l *Link) Next() (s Status, err error) { return s, l.in.Decode(&s) }

// Stop asks for the end of the box; it does not wait for it.
func (l *Link) Stop(grace time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return json.NewEncoder(l.conn).Encode(command{Stop: true, Grace: grace})
}

// Close closes the connection. The shim does not mind.
func (l *Link) Close() error { return l.conn.Close() }

// Exec starts a process in the box of dir. The context bounds the start.
func Exec(ctx context.Context, dir string, spec core.ExecSpec) (core.Process, error) {
	conn, err := dial(dir, execSocket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", core.ErrNotRunning, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	reply := &boxv1.ErrorDetail{}
	err = procstream.WriteMsg(conn, boxpb.FromExecSpec(spec))
	if err == nil {
		err = procstream.ReadMsg(conn, reply)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil && reply.GetOp() != "" {
		err = grpcerr.FromDetail(reply)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start process: %w", err)
	}
	return procstream.NewProcess(clientConn{conn}, func(err error) error {
		return fmt.Errorf("%w: connection to the box's shim: %w", core.ErrExitUnknown, err)
	}), nil
}

type clientConn struct{ *net.UnixConn }

var _ procstream.ClientConn = clientConn{}

// Send is of procstream.ClientConn.
func (c clientConn) Send(m *boxv1.ExecInput) error { return procstream.WriteMsg(c.UnixConn, m) }

// Recv is of procstream.ClientConn.
func (c clientConn) Recv() (*boxv1.ExecOutput, error) {
	m := &boxv1.ExecOutput{}
	return m, procstream.ReadMsg(c.UnixConn, m)
}

// CloseSend is of procstream.ClientConn.
func (c clientConn) CloseSend() error { return c.CloseWrite() }

// dial connects to a socket in dir by way of an open descriptor of it, since the
// path may be too long for an address.
func dial(dir, name string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	addr := &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), Net: "unix"}
	return net.DialUnix("unix", nil, addr)
}

// awaitInterval is how often Await looks again.
const awaitInterval = 20 * time.Millisecond

// Await connects to the shim of dir, waiting for one that is still bringing its
// box up. Without a living shim it is fs.ErrNotExist.
func Await(ctx context.Context, dir string) (*Link, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout+teardownTimeout)
	defer cancel()
	for {
		link, err := Dial(dir)
		if err == nil {
			return link, nil
		}
		if !locked(dir) {
			return nil, fs.ErrNotExist
		}
		select {
		case <-time.After(awaitInterval):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// locked tells whether a shim of dir lives.
func locked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
