package node_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

func TestExec(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1", Env: []string{"A=box", "B=box"}, WorkDir: "/made/deep"})
	create(t, r, core.BoxSpec{ID: "b2", User: "nobody", WorkDir: "/made"})
	tests := []struct {
		name  string
		box   core.BoxID
		spec  core.ExecSpec
		input string
		want  result
	}{
		{
			name: "streams apart", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}},
			want: result{core.ExecExit{Code: 7, Reason: core.ReasonExited}, "out\n", "err\n"},
		},
		{
			name: "input", box: "b1", input: "some words",
			spec: core.ExecSpec{Cmd: []string{"cat"}, Stdin: true},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "some words", ""},
		},
		{
			name: "no input", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"cat"}},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "", ""},
		},
		{
			name: "not found", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"no-such-command", "-x"}},
			want: result{core.ExecExit{Code: 127, Reason: core.ReasonExited}, "", "tai: no-such-command: not found\n"},
		},
		{
			name: "not executable", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"/etc/passwd"}},
			want: result{core.ExecExit{Code: 126, Reason: core.ReasonExited}, "", "tai: /etc/passwd: permission denied\n"},
		},
		{
			name: "no such directory", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"true"}, Dir: "/nowhere"},
			want: result{core.ExecExit{Code: 126, Reason: core.ReasonExited}, "", "tai: working directory /nowhere: no such file or directory\n"},
		},
		{
			name: "killed by a signal", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"sh", "-c", "kill -TERM $$"}},
			want: result{core.ExecExit{Code: 143, Reason: core.ReasonKilled}, "", ""},
		},
		{
			name: "the box's directory", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"pwd"}},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "/made/deep\n", ""},
		},
		{
			name: "a directory", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"pwd"}, Dir: "/usr/bin"},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "/usr/bin\n", ""},
		},
		{
			name: "a relative directory", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"pwd"}, Dir: ".."},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "/made\n", ""},
		},
		{
			name: "environment", box: "b1",
			spec: core.ExecSpec{Cmd: []string{"sh", "-c", "echo $A $B $C $HOME $HOSTNAME"}, Env: []string{"B=exec", "C=exec"}},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "box exec exec /root b1\n", ""},
		},
		{
			name: "the box's user", box: "b2",
			spec: core.ExecSpec{Cmd: []string{"sh", "-c", "id -un; touch mine; echo > /dev/stdout"}},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "nobody\n\n", ""},
		},
		{
			name: "another user", box: "b2",
			spec: core.ExecSpec{Cmd: []string{"sh", "-c", "id -u; id -G"}, User: "1234:5678"},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "1234\n5678\n", ""},
		},
		{
			name: "root of a user's box", box: "b2",
			spec: core.ExecSpec{Cmd: []string{"id", "-u"}, User: "root"},
			want: result{core.ExecExit{Reason: core.ReasonExited}, "0\n", ""},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := runInput(t, r, test.box, test.spec, test.input)
			if got != test.want {
				t.Errorf("exec %q: got %+v, want %+v", test.spec.Cmd, got, test.want)
			}
		})
	}
}

func TestExecRefused(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1"})
	tests := []struct {
		name string
		ref  core.BoxRef
		spec core.ExecSpec
		want error
	}{
		{"unknown box", core.BoxRef{ID: "x"}, core.ExecSpec{Cmd: []string{"true"}}, core.ErrNotFound},
		{"other incarnation", core.BoxRef{ID: "b1", Incarnation: "x"}, core.ExecSpec{Cmd: []string{"true"}}, core.ErrConflict},
		{"empty command", core.BoxRef{ID: "b1"}, core.ExecSpec{}, core.ErrInvalid},
		{"environment key", core.BoxRef{ID: "b1"}, core.ExecSpec{Cmd: []string{"true"}, Env: []string{"nothing"}}, core.ErrInvalid},
		{"NUL", core.BoxRef{ID: "b1"}, core.ExecSpec{Cmd: []string{"a\x00b"}}, core.ErrInvalid},
		{"unknown user", core.BoxRef{ID: "b1"}, core.ExecSpec{Cmd: []string{"true"}, User: "no-such-user"}, core.ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := r.Exec(t.Context(), test.ref, test.spec)
			if err == nil {
				p.Close()
			}
			if !errors.Is(err, test.want) {
				t.Errorf("exec: %v, want %v", err, test.want)
			}
		})
	}
}

// A reader who takes his time gets everything, also after the process ended and
// while something in the background holds its output open.
func TestExecSlowReader(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1"})
	const size = 3 << 20
	script := "sleep 600 & head -c 3145728 /dev/zero; echo end >&2"
	p, err := r.Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{Cmd: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if line, err := bufio.NewReader(io.LimitReader(p.Stdout(), 10)).Peek(10); err != nil || !bytes.Equal(line, make([]byte, 10)) {
		t.Fatalf("first bytes: %q, %v", line, err)
	}
	got, buf := 10, make([]byte, 64<<10)
	for pause := 300 * time.Millisecond; ; {
		n, err := p.Stdout().Read(buf)
		got += n
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if got > size*9/10 && pause > 0 {
			<-time.After(pause) // longer than the silence that ends an output
			pause = 0
		}
	}
	if got != size {
		t.Errorf("read %d bytes, want %d", got, size)
	}
	if exit, err := p.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("exit: %+v, %v", exit, err)
	}
	if rest, err := io.ReadAll(p.Stderr()); err != nil || string(rest) != "end\n" {
		t.Errorf("standard error: %q, %v", rest, err)
	}
	if n := sh(t, r, "b1", countSleeps); n != "1" {
		t.Errorf("%s processes in the background, want 1", n)
	}
}

func TestExecTerminal(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1"})
	p, err := r.Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{
		Cmd: []string{"sh", "-c", "tty; stty size; read x; stty size; cat; echo end"},
		TTY: true, Stdin: true, Size: core.WindowSize{Rows: 11, Cols: 33},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out := bufio.NewReader(p.Stdout())
	expect := func(want string) {
		t.Helper()
		line, err := out.ReadString('\n')
		if err != nil || strings.TrimSpace(line) != want {
			t.Fatalf("line %q, %v, want %q", line, err, want)
		}
	}
	if line, err := out.ReadString('\n'); err != nil || !strings.HasPrefix(line, "/dev/pts/") {
		t.Fatalf("tty: %q, %v", line, err)
	}
	expect("11 33")
	if err := p.Resize(core.WindowSize{Rows: 22, Cols: 44}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "x\n"); err != nil {
		t.Fatal(err)
	}
	expect("x") // the terminal's echo
	expect("22 44")
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	expect("end")
	if exit, err := p.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("exit: %+v, %v", exit, err)
	}
}

func TestExecKillGroup(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1"})
	p, err := r.Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{Cmd: []string{"sh", "-c", "sleep 601 & sleep 602 & echo up; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := bufio.NewReader(p.Stdout()).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Inspect(t.Context(), "b1"); err != nil || s.Execs != 1 || s.Processes < 4 {
		t.Errorf("a busy box: %+v, %v", s, err)
	}
	if err := p.Signal(int(unix.SIGKILL), true); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || exit.Code != 137 || exit.Reason != core.ReasonKilled {
		t.Errorf("exit: %+v, %v", exit, err)
	}
	eventually(t, "the whole group is gone", func() bool {
		return sh(t, r, "b1", countSleeps) == "0"
	})
	eventually(t, "no exec is counted", func() bool {
		s, err := r.Inspect(t.Context(), "b1")
		return err == nil && s.Execs == 0
	})
}

// Letting go of a process kills nothing.
func TestExecClose(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1"})
	p, err := r.Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{
		Cmd: []string{"sh", "-c", "read x; echo $x; cat; head -c 2000000 /dev/zero; echo more >&2; touch /done"}, Stdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "input\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(p.Stdout()).ReadString('\n'); err != nil || line != "input\n" {
		t.Fatalf("answer %q, %v", line, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process has done its work", func() bool {
		return run(t, r, "b1", core.ExecSpec{Cmd: []string{"test", "-e", "/done"}}).Code == 0
	})
}

func TestLimits(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1", Memory: 64 << 20, CPUs: 0.5, PIDs: 30})
	got := run(t, r, "b1", core.ExecSpec{Cmd: []string{"tail", "/dev/zero"}})
	if got.Code != 137 || got.Reason != core.ReasonOOM {
		t.Errorf("a process that takes too much memory: %+v", got)
	}
	if s, err := r.Inspect(t.Context(), "b1"); err != nil || s.Status != core.StatusRunning {
		t.Errorf("the box after that: %+v, %v", s, err)
	}
	forks := run(t, r, "b1", core.ExecSpec{Cmd: []string{"sh", "-c", "for i in $(seq 40); do sleep 60 & done"}})
	if forks.Code == 0 || !strings.Contains(forks.stderr, "fork") {
		t.Errorf("forty processes in a box of thirty: %+v", forks)
	}
	if err := r.Remove(t.Context(), core.BoxRef{ID: "b1"}); err != nil {
		t.Fatal(err)
	}
	create(t, r, core.BoxSpec{ID: "b2", Memory: 64 << 20, Cmd: []string{"tail", "/dev/zero"}})
	eventually(t, "the box ends", func() bool {
		s, err := r.Inspect(t.Context(), "b2")
		return err == nil && s.Status == core.StatusStopped
	})
	if s, err := r.Inspect(t.Context(), "b2"); err != nil || s.Reason != core.ReasonOOM {
		t.Errorf("a box that takes too much memory: %+v, %v", s, err)
	}
}
