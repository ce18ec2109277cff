package shim

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/procstream"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
	"github.com/yaoapp/sbgw/tai/oci"
)

const (
	// execStartTimeout bounds the start of a process.
	execStartTimeout = 30 * time.Second
	// endOfInput is what the end of input is on a terminal: control-D.
	endOfInput = "\x04"
)

// serveExec runs one process: the connection brings an ExecStart, gets an
// ErrorDetail that is empty if the process runs, and then carries ExecInput and
// ExecOutput. When it is lost the process goes on.
func (s *shim) serveExec(conn *net.UnixConn) {
	defer conn.Close()
	s.execs.Add(1)
	defer s.execs.Done()
	start := &boxv1.ExecStart{}
	conn.SetReadDeadline(time.Now().Add(execStartTimeout))
	if err := procstream.ReadMsg(conn, start); err != nil {
		return
	}
	conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(context.Background(), execStartTimeout)
	defer cancel()
	p, err := s.startProcess(ctx, boxpb.ToExecSpec(start))
	if err != nil {
		procstream.WriteMsg(conn, grpcerr.Detail(err))
		return
	}
	if err := procstream.WriteMsg(conn, &boxv1.ErrorDetail{}); err != nil {
		// Nobody knows of it: it must not run.
		p.Signal(int(unix.SIGKILL), true)
	}
	procstream.Serve(context.Background(), p, serverConn{conn})
}

type serverConn struct{ conn *net.UnixConn }

// Send is of procstream.ServerConn.
func (c serverConn) Send(m *boxv1.ExecOutput) error { return procstream.WriteMsg(c.conn, m) }

// Recv is of procstream.ServerConn.
func (c serverConn) Recv() (*boxv1.ExecInput, error) {
	m := &boxv1.ExecInput{}
	return m, procstream.ReadMsg(c.conn, m)
}

// process is a process that the runtime started in the box.
type process struct {
	shim   *shim
	pid    int
	stdin  io.WriteCloser
	stdout io.Reader
	stderr io.Reader
	files  []*output
	master *os.File // of a terminal
	exited chan struct{}
	exit   core.ExecExit // final when exited is closed

	mu     sync.Mutex
	killed bool // by us
}

var _ core.Process = (*process)(nil)

// startProcess has the runtime start a process in the box.
func (s *shim) startProcess(ctx context.Context, spec core.ExecSpec) (*process, error) {
	select {
	case <-s.ended:
		return nil, fmt.Errorf("%w: %w", core.ErrNotRunning, errEnded)
	default:
	}
	user, err := s.lookupUser(spec.User)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.sequence++
	name := filepath.Join(s.dir, tempDir, fmt.Sprintf("exec%d", s.sequence))
	s.mu.Unlock()
	defer func() {
		for _, suffix := range []string{".pid", ".log", ".tty"} {
			os.Remove(name + suffix)
		}
	}()
	opts := &runc.ExecOpts{PidFile: name + ".pid", LogFile: name + ".log", Detach: true}
	p := &process{shim: s, exited: make(chan struct{})}
	attach := p.openPipes
	if spec.TTY {
		attach = p.openTerminal
	}
	attached, err := attach(opts, spec, user)
	if err != nil {
		return nil, err
	}
	oom, _ := s.cfg.Cgroup.OOMKills()
	mark := s.reaper.mark()
	err = s.runc.Exec(ctx, string(s.cfg.Spec.ID), *oci.Process(s.cfg.Spec, spec, user), opts)
	if aerr := attached(err == nil); err == nil {
		err = aerr
	}
	if err != nil {
		p.Close()
		return nil, s.execError(opts.LogFile, err)
	}
	if p.pid, err = runc.ReadPidFile(opts.PidFile); err != nil {
		p.Close()
		return nil, err
	}
	s.hub.update(func(st *Status) { st.Execs++ })
	go p.wait(s.reaper.watch(p.pid, mark), oom)
	return p, nil
}

func (s *shim) lookupUser(name string) (oci.User, error) {
	if name == "" {
		name = s.cfg.Spec.User
	}
	// The main process's own view: volumes may lie over the files.
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", s.state.PID))
	if err != nil {
		return oci.User{}, fmt.Errorf("%w: %w", core.ErrNotRunning, err)
	}
	defer root.Close()
	return oci.LookupUser(root, name)
}

// execError tells a box that ended under an exec from other failures.
func (s *shim) execError(logFile string, err error) error {
	select {
	case <-s.ended:
		return fmt.Errorf("%w: %w", core.ErrNotRunning, errEnded)
	default:
		return s.runtimeError("start process", logFile, err)
	}
}

// openPipes makes the process's standard streams. attached closes the process's
// ends, which the process has by then.
func (p *process) openPipes(o *runc.ExecOpts, spec core.ExecSpec, u oci.User) (attached func(bool) error, err error) {
	var theirs []*os.File
	closeTheirs := func(bool) error {
		for _, f := range theirs {
			f.Close()
		}
		return nil
	}
	defer func() {
		if err != nil {
			closeTheirs(false)
			p.Close()
		}
	}()
	for range 2 {
		ours, their, err := pipe(u.UID, u.GID, true)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, their)
		p.files = append(p.files, &output{f: ours, exited: p.exited})
	}
	p.stdout, p.stderr = p.files[0], p.files[1]
	in, err := os.Open(os.DevNull)
	if spec.Stdin && err == nil {
		in.Close()
		var ours *os.File
		ours, in, err = pipe(u.UID, u.GID, false)
		if err == nil {
			p.stdin = ours
		}
	}
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, in)
	o.IO = &stdio{in: in, out: theirs[0], err: theirs[1]}
	return closeTheirs, nil
}

// openTerminal makes a socket that the runtime sends the terminal through;
// attached receives it.
func (p *process) openTerminal(o *runc.ExecOpts, spec core.ExecSpec, _ oci.User) (attached func(bool) error, err error) {
	// Relative, as listen does; the runtime has the same working directory.
	path := filepath.Join(tempDir, strings.TrimSuffix(filepath.Base(o.PidFile), ".pid")+".tty")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	o.ConsoleSocket = socketPath(path)
	p.stderr = strings.NewReader("")
	return func(ok bool) error {
		defer listener.Close()
		if !ok {
			return nil
		}
		master, err := receiveFile(listener)
		if err != nil {
			return fmt.Errorf("receive terminal: %w", err)
		}
		out := &output{f: master, exited: p.exited}
		p.master, p.stdout, p.files = master, out, []*output{out}
		input := &terminalInput{p: p}
		if spec.Stdin {
			p.stdin = input
		} else if err := input.Close(); err != nil {
			return err
		}
		return p.Resize(spec.Size)
	}, nil
}

type socketPath string

// Path is of runc.ConsoleSocket.
func (s socketPath) Path() string { return string(s) }

// receiveFile takes the one descriptor that is sent over a connection.
func receiveFile(l *net.UnixListener) (*os.File, error) {
	l.SetDeadline(time.Now().Add(5 * time.Second))
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no descriptor in the message: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no descriptor in the message: %w", err)
	}
	unix.CloseOnExec(fds[0])
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
