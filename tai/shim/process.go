package shim

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

// wait takes the end of the process.
func (p *process) wait(status <-chan unix.WaitStatus, oomBefore int) {
	s := <-status
	p.exit = p.describe(s, oomBefore)
	p.shim.hub.update(func(st *Status) { st.Execs-- })
	close(p.exited)
	for _, f := range p.files {
		f.processEnded()
	}
}

// describe tells how the process ended. Out of memory is what the kernel's count
// says, for a shell also when it was a child of it.
func (p *process) describe(s unix.WaitStatus, oomBefore int) core.ExecExit {
	e := core.ExecExit{Code: exitCode(s), Reason: core.ReasonExited}
	if s.Signaled() {
		e.Reason = core.ReasonKilled
	}
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if e.Code != 128+int(unix.SIGKILL) || killed {
		return e
	}
	if now, err := p.shim.cfg.Cgroup.OOMKills(); err == nil && now > oomBefore {
		e.Reason = core.ReasonOOM
	}
	return e
}

// Stdin is of core.Process.
func (p *process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return noInput{}
	}
	return p.stdin
}

// Stdout is of core.Process.
func (p *process) Stdout() io.Reader { return p.stdout }

// Stderr is of core.Process.
func (p *process) Stderr() io.Reader { return p.stderr }

// Resize is of core.Process. Without a terminal it does nothing.
func (p *process) Resize(s core.WindowSize) error {
	if p.master == nil || s == (core.WindowSize{}) {
		return nil
	}
	raw, err := p.master.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	err = raw.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
	if err != nil {
		return err
	}
	return ierr
}

// Signal is of core.Process. The process leads a session, hence a group.
func (p *process) Signal(sig int, group bool) error {
	if unix.Signal(sig) == unix.SIGKILL {
		p.mu.Lock()
		p.killed = true
		p.mu.Unlock()
	}
	return p.shim.reaper.signal(p.pid, unix.Signal(sig), group)
}

// Wait is of core.Process.
func (p *process) Wait() (core.ExecExit, error) {
	<-p.exited
	return p.exit, nil
}

// Close is of core.Process.
func (p *process) Close() error {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, f := range p.files {
		if p.master != nil {
			f.finish() // a terminal is hung up
		}
		f.release()
	}
	return nil
}

// terminalInput writes to a terminal. Closing it types control-D: the output must
// stay open.
type terminalInput struct{ p *process }

// Write is of io.Writer.
func (t *terminalInput) Write(b []byte) (int, error) { return t.p.master.Write(b) }

// Close is of io.Closer.
func (t *terminalInput) Close() error {
	select {
	case <-t.p.exited:
		return nil
	default:
	}
	_, err := t.p.master.WriteString(endOfInput)
	return err
}

// noInput is the standard input of a process that reads /dev/null.
type noInput struct{}

// Write is of io.Writer.
func (noInput) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Close is of io.Closer.
func (noInput) Close() error { return nil }
