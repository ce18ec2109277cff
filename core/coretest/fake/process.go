package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/creack/pty"

	"github.com/yaoapp/sbgw/core"
)

// Exec implements core.Execer.
func (b *Backend) Exec(_ context.Context, r core.BoxRef, s core.ExecSpec) (core.Process, error) {
	if len(s.Cmd) == 0 || s.Cmd[0] == "" {
		return nil, core.Invalid("the command is empty")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x, err := b.findLocked(r)
	if err != nil {
		return nil, err
	}
	if x.State.Status != core.StatusRunning {
		return nil, fmt.Errorf("%w: box %s", core.ErrNotRunning, r.ID)
	}
	p, err := b.spawn(x, s)
	if err != nil {
		return nil, err
	}
	x.procs[p] = true
	go func() {
		<-p.ended
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(x.procs, p)
	}()
	return p, nil
}

// spawn starts a process of the box.
func (b *Backend) spawn(x *box, s core.ExecSpec) (*process, error) {
	cmd := &exec.Cmd{Args: s.Cmd, Dir: b.locate(x, s.Dir), SysProcAttr: &syscall.SysProcAttr{}}
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}, x.Spec.Env...)
	cmd.Env = append(cmd.Env, s.Env...)
	if err := as(cmd, firstOf(s.User, x.Spec.User)); err != nil {
		return nil, err
	}
	var err error
	if cmd.Path, err = exec.LookPath(s.Cmd[0]); err != nil {
		return stillborn(s.Cmd[0], err), nil
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	if s.TTY {
		err = p.startTTY(s.Size)
	} else {
		err = p.startPipes(s.Stdin)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Cmd[0], err)
	}
	go p.reap()
	return p, nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// locate finds the directory of this machine that a path in the box means.
func (b *Backend) locate(x *box, path string) string {
	if path == "" {
		path = x.Spec.WorkDir
	}
	for _, m := range x.Spec.Mounts {
		if rest, ok := strings.CutPrefix(path, m.Target); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(b.volume(m.Session), rest)
		}
	}
	if path == "" {
		return "/"
	}
	return path
}

// as makes the command run as user[:group].
func as(cmd *exec.Cmd, name string) error {
	if name == "" {
		return nil
	}
	u, g, _ := strings.Cut(name, ":")
	if known, err := user.Lookup(u); err == nil {
		u = known.Uid
		g = firstOf(g, known.Gid)
	}
	uid, err := strconv.ParseUint(u, 10, 32)
	if err != nil {
		return core.Invalid("unknown user %q", name)
	}
	gid, err := strconv.ParseUint(firstOf(g, "0"), 10, 32)
	if err != nil {
		return core.Invalid("unknown group %q", g)
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return nil
}

// process is a started process. After Close nobody reads what it writes.
type process struct {
	cmd    *exec.Cmd // nil: there is none
	stdin  io.WriteCloser
	stdout io.Reader
	stderr io.Reader
	tty    *os.File

	ended chan struct{} // exit is final
	exit  core.ExecExit
	drain sync.Once
}

var _ core.Process = (*process)(nil)

// stillborn is a process that could not be started, as a shell tells it.
func stillborn(name string, err error) *process {
	code, why := 127, "not found"
	if errors.Is(err, fs.ErrPermission) {
		code, why = 126, "not executable"
	}
	p := &process{
		stdin: discard{}, stdout: strings.NewReader(""), stderr: strings.NewReader(name + ": " + why + "\n"),
		ended: make(chan struct{}), exit: core.ExecExit{Code: code, Reason: core.ReasonExited},
	}
	close(p.ended)
	return p
}

func (p *process) startTTY(size core.WindowSize) error {
	tty, err := pty.StartWithSize(p.cmd, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
	if err != nil {
		return err
	}
	p.tty = tty
	p.stdin, p.stdout, p.stderr = ttyInput{tty}, ttyOutput{tty}, strings.NewReader("")
	return nil
}

func (p *process) startPipes(stdin bool) error {
	outR, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		outR.Close()
		return err
	}
	defer errW.Close()
	p.cmd.Stdout, p.cmd.Stderr = outW, errW
	p.cmd.SysProcAttr.Setpgid = true
	p.stdin, p.stdout, p.stderr = discard{}, outR, errR
	if stdin {
		inR, inW, err := os.Pipe()
		if err != nil {
			outR.Close()
			errR.Close()
			return err
		}
		defer inR.Close()
		p.cmd.Stdin, p.stdin = inR, inW
	}
	if err := p.cmd.Start(); err != nil {
		p.stdin.Close()
		outR.Close()
		errR.Close()
		return err
	}
	return nil
}

// reap waits for the end.
func (p *process) reap() {
	p.cmd.Wait()
	p.exit = core.ExecExit{Code: p.cmd.ProcessState.ExitCode(), Reason: core.ReasonExited}
	if st := p.cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signaled() {
		p.exit = core.ExecExit{Code: 128 + int(st.Signal()), Reason: core.ReasonKilled}
	}
	close(p.ended)
}

func (p *process) Stdin() io.WriteCloser { return p.stdin }
func (p *process) Stdout() io.Reader     { return p.stdout }
func (p *process) Stderr() io.Reader     { return p.stderr }

func (p *process) Resize(s core.WindowSize) error {
	if p.tty == nil {
		return core.Invalid("the process has no terminal")
	}
	return pty.Setsize(p.tty, &pty.Winsize{Rows: s.Rows, Cols: s.Cols})
}

func (p *process) Signal(sig int, group bool) error {
	if p.cmd == nil {
		return nil
	}
	select {
	case <-p.ended:
		return nil // the number may be another's by now
	default:
	}
	pid := p.cmd.Process.Pid
	if group {
		pid = -pid
	}
	if err := syscall.Kill(pid, syscall.Signal(sig)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func (p *process) Wait() (core.ExecExit, error) {
	<-p.ended
	return p.exit, nil
}

// Close implements core.Process; the process goes on and its output is thrown
// away until its end.
func (p *process) Close() error {
	p.drain.Do(func() {
		p.stdin.Close()
		for _, r := range []io.Reader{p.stdout, p.stderr} {
			go func() {
				io.Copy(io.Discard, r)
				if c, ok := r.(io.Closer); ok {
					c.Close()
				}
			}()
		}
	})
	return nil
}

// discard is the standard input of a process that has none.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return 0, io.ErrClosedPipe }
func (discard) Close() error                { return nil }

// ttyInput ends a terminal's input as a user does.
type ttyInput struct{ *os.File }

func (t ttyInput) Close() error {
	_, err := t.Write([]byte{4})
	return err
}

// ttyOutput ends when the last process lets go of the terminal, which read(2)
// tells by EIO.
type ttyOutput struct{ *os.File }

func (t ttyOutput) Read(b []byte) (int, error) {
	n, err := t.File.Read(b)
	if errors.Is(err, syscall.EIO) {
		err = io.EOF
	}
	return n, err
}
