package procstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yaoapp/sbgw/core"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// local is a core.Process over a process of this machine.
type local struct {
	cmd            *exec.Cmd
	in             *os.File
	stdout, stderr *os.File
}

func start(t *testing.T, script string) *local {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	inR, inW, _ := os.Pipe()
	outR, outW, _ := os.Pipe()
	errR, errW, _ := os.Pipe()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	errW.Close()
	return &local{cmd: cmd, in: inW, stdout: outR, stderr: errR}
}

func (l *local) Stdin() io.WriteCloser        { return l.in }
func (l *local) Stdout() io.Reader            { return l.stdout }
func (l *local) Stderr() io.Reader            { return l.stderr }
func (l *local) Resize(core.WindowSize) error { return core.Unsupported("resize") }
func (l *local) Signal(sig int, group bool) error {
	return syscall.Kill(-l.cmd.Process.Pid, syscall.Signal(sig))
}

func (l *local) Wait() (core.ExecExit, error) {
	l.cmd.Wait()
	ws := l.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return core.ExecExit{Code: 128 + int(ws.Signal()), Reason: core.ReasonKilled}, nil
	}
	return core.ExecExit{Code: ws.ExitStatus(), Reason: core.ReasonExited}, nil
}

func (l *local) Close() error {
	l.in.Close()
	l.stdout.Close()
	return l.stderr.Close()
}

// framed is both ends of a connection of frames.
type framed struct{ net.Conn }

type serverEnd struct{ framed }

func (s serverEnd) Send(m *boxv1.ExecOutput) error { return WriteMsg(s.Conn, m) }
func (s serverEnd) Recv() (*boxv1.ExecInput, error) {
	m := new(boxv1.ExecInput)
	return m, ReadMsg(s.Conn, m)
}

type clientEnd struct{ framed }

func (c clientEnd) Send(m *boxv1.ExecInput) error { return WriteMsg(c.Conn, m) }
func (c clientEnd) Recv() (*boxv1.ExecOutput, error) {
	m := new(boxv1.ExecOutput)
	return m, ReadMsg(c.Conn, m)
}
func (c clientEnd) CloseSend() error { return nil }

var errBroken = errors.New("link broken")

// serve runs a script behind a socket pair and returns its far end, a way to cut
// the link, and what Serve returned.
func serve(t *testing.T, script string) (core.Process, func(), <-chan error) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	done := make(chan error, 1)
	p := start(t, script)
	go func() {
		done <- Serve(context.Background(), p, serverEnd{framed{ends[0]}})
		ends[0].Close()
	}()
	far := NewProcess(clientEnd{framed{ends[1]}}, func(error) error { return errBroken })
	t.Cleanup(func() { far.Close() })
	return far, func() { ends[1].Close() }, done
}

func TestStreamsApartAndExit(t *testing.T) {
	p, _, done := serve(t, `cat; echo err >&2; exit 7`)
	want := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB: four windows
	go func() {
		io.WriteString(p.Stdin(), want)
		p.Stdin().Close()
	}()
	var out, errs bytes.Buffer
	io.Copy(&out, p.Stdout())
	io.Copy(&errs, p.Stderr())
	exit, err := p.Wait()
	if err != nil || exit.Code != 7 {
		t.Errorf("Wait = %+v, %v; want code 7", exit, err)
	}
	if out.String() != want || errs.String() != "err\n" {
		t.Errorf("stdout of %d bytes, want %d; stderr %q", out.Len(), len(want), errs.String())
	}
	if err := <-done; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestUnreadStreamHoldsUpNothing(t *testing.T) {
	// 300 KiB of stderr: more than its window, less than window and pipe.
	p, _, _ := serve(t, `head -c 300000 /dev/zero >&2; echo done; exit 3`)
	out, err := io.ReadAll(p.Stdout())
	if err != nil || string(out) != "done\n" {
		t.Fatalf("stdout = %q, %v", out, err)
	}
	if exit, err := p.Wait(); err != nil || exit.Code != 3 {
		t.Fatalf("Wait = %+v, %v; want code 3", exit, err)
	}
	if errs, err := io.ReadAll(p.Stderr()); err != nil || len(errs) != 300000 {
		t.Fatalf("stderr read late: %d bytes, %v; want 300000", len(errs), err)
	}
}

func TestProcessThatReadsNothingCanBeKilled(t *testing.T) {
	p, _, _ := serve(t, `exec sleep 60`)
	go io.Copy(p.Stdin(), io.LimitReader(zeros{}, 1<<20)) // more than window and pipe
	if err := p.Signal(int(syscall.SIGKILL), true); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || exit.Code != 128+9 {
		t.Fatalf("Wait = %+v, %v; want 137", exit, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestLostLinkKillsNothing(t *testing.T) {
	mark := t.TempDir() + "/mark"
	p, cut, done := serve(t, `head -c 2000000 /dev/zero; cat; echo survived >`+mark)
	io.ReadFull(p.Stdout(), make([]byte, 1000))
	cut()
	if _, err := p.Wait(); !errors.Is(err, errBroken) {
		t.Errorf("Wait = %v, want the link's error", err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, ErrLost) {
			t.Errorf("Serve = %v, want ErrLost", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the process was held up by its lost link")
	}
	if b, err := os.ReadFile(mark); string(b) != "survived\n" {
		t.Errorf("mark = %q, %v", b, err)
	}
}

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	in := &boxv1.ExecInput{Payload: &boxv1.ExecInput_Stdin{Stdin: []byte("x")}}
	if err := WriteMsg(&b, in); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	for cut, want := range map[int]error{0: io.EOF, 2: io.ErrUnexpectedEOF, 5: io.ErrUnexpectedEOF} {
		if err := ReadMsg(bytes.NewReader(whole[:cut]), new(boxv1.ExecInput)); !errors.Is(err, want) {
			t.Errorf("frame cut after %d bytes: %v, want %v", cut, err, want)
		}
	}
	if err := ReadMsg(bytes.NewReader([]byte{0xff, 0, 0, 0}), new(boxv1.ExecInput)); err == nil {
		t.Error("a frame of 4 GiB was accepted")
	}
}
