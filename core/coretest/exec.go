package coretest

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

func (s *suite) exec() []testCase {
	return []testCase{
		{"exit_codes", s.tellsExitCodes},
		{"streams", s.separatesStreams},
		{"stdin", s.feedsStdin},
		{"no_stdin", s.endsStdin},
		{"empty", s.refusesEmpty},
		{"dir", s.startsInDir},
		{"env", s.setsEnv},
		{"user", s.switchesUser},
		{"tty", s.givesTerminal},
		{"kill_group", s.killsGroup},
		{"kill_one", s.killsOne},
		{"concurrent", s.runsConcurrently},
		{"count", s.countsExecs},
	}
}

func (s *suite) tellsExitCodes(t *testing.T) {
	st := s.box(t)
	for _, c := range []struct {
		name string
		cmd  []string
		want int
	}{
		{"success", []string{"true"}, 0},
		{"failure", []string{"sh", "-c", "exit 9"}, 9},
		{"largest", []string{"sh", "-c", "exit 255"}, 255},
		{"not found", []string{"no-such-command"}, 127},
		{"path not found", []string{"/no/such/command"}, 127},
		{"not executable", []string{"/etc/passwd"}, 126},
		{"killed by TERM", []string{"sh", "-c", "kill -TERM $$"}, 128 + int(syscall.SIGTERM)},
		{"killed by KILL", []string{"sh", "-c", "kill -KILL $$"}, 128 + int(syscall.SIGKILL)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := s.run(t, st.ID, core.ExecSpec{Cmd: c.cmd}, ""); r.exit.Code != c.want {
				t.Errorf("exec %q: got %+v, want code %d", c.cmd, r, c.want)
			}
		})
	}
}

func (s *suite) separatesStreams(t *testing.T) {
	st := s.box(t)
	r := s.sh(t, st.ID, "echo out; echo err >&2; printf more")
	if r.stdout != "out\nmore" || r.stderr != "err\n" {
		t.Errorf("got stdout %q, stderr %q", r.stdout, r.stderr)
	}
	if r.exit.Reason != core.ReasonExited {
		t.Errorf("reason: got %q, want %q", r.exit.Reason, core.ReasonExited)
	}
}

func (s *suite) feedsStdin(t *testing.T) {
	st := s.box(t)
	in := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
	r := s.run(t, st.ID, core.ExecSpec{Cmd: []string{"cat"}}, in)
	if r.stdout != in || r.exit.Code != 0 {
		t.Errorf("cat: got %d bytes, code %d, want the %d sent", len(r.stdout), r.exit.Code, len(in))
	}
	r = s.run(t, st.ID, core.ExecSpec{Cmd: []string{"head", "-c", "5"}}, in)
	if r.stdout != "01234" || r.exit.Code != 0 {
		t.Errorf("head, which does not read all: got %q, code %d", r.stdout, r.exit.Code)
	}
}

func (s *suite) endsStdin(t *testing.T) {
	st := s.box(t)
	r := s.run(t, st.ID, core.ExecSpec{Cmd: []string{"cat"}}, "")
	if r.stdout != "" || r.exit.Code != 0 {
		t.Errorf("cat without standard input: got %+v", r)
	}
}

func (s *suite) refusesEmpty(t *testing.T) {
	st := s.box(t)
	_, err := s.execer(t).Exec(deadline(t), core.BoxRef{ID: st.ID}, core.ExecSpec{})
	is(t, err, core.ErrInvalid, "exec of an empty command")
}

func (s *suite) startsInDir(t *testing.T) {
	v, _ := s.volume(t)
	st := s.box(t, with(v))
	if r := s.sh(t, st.ID, "mkdir sub && echo here > sub/f"); r.exit.Code != 0 {
		t.Fatalf("write in the working directory: %+v", r)
	}
	r := s.run(t, st.ID, core.ExecSpec{Cmd: []string{"cat", "f"}, Dir: target + "/sub"}, "")
	if r.stdout != "here\n" {
		t.Errorf("cat in %s/sub: got %+v", target, r)
	}
	r = s.run(t, st.ID, core.ExecSpec{Cmd: []string{"pwd"}, Dir: "/usr"}, "")
	if r.stdout != "/usr\n" {
		t.Errorf("pwd in /usr: got %+v", r)
	}
}

func (s *suite) setsEnv(t *testing.T) {
	st := s.box(t, func(b *core.BoxSpec) { b.Env = []string{"CT_BOX=box", "CT_BOTH=box"} })
	r := s.run(t, st.ID, core.ExecSpec{
		Cmd: []string{"sh", "-c", `printf '%s|' "$CT_BOX" "$CT_BOTH" "$CT_EXEC"`},
		Env: []string{"CT_BOTH=exec", "CT_EXEC=a=b c"},
	}, "")
	if want := "box|exec|a=b c|"; r.stdout != want {
		t.Errorf("environment: got %q, want %q", r.stdout, want)
	}
}

func (s *suite) switchesUser(t *testing.T) {
	st := s.box(t)
	r := s.run(t, st.ID, core.ExecSpec{Cmd: []string{"sh", "-c", "id -u; id -g"}, User: "12345:23456"}, "")
	if r.stdout != "12345\n23456\n" {
		t.Errorf("numbers: got %+v", r)
	}
	r = s.run(t, st.ID, core.ExecSpec{Cmd: []string{"id", "-un"}, User: "nobody"}, "")
	if r.stdout != "nobody\n" {
		t.Errorf("name: got %+v", r)
	}
}

func (s *suite) killsGroup(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{Cmd: []string{"sh", "-c", "sleep 300 & echo $!; wait"}})
	child := readLine(t, p.Stdout())
	if err := p.Signal(int(syscall.SIGKILL), true); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit: got %+v, want code %d", exit, 128+int(syscall.SIGKILL))
	}
	eventually(t, "the child's end", func() bool { return !s.alive(t, st.ID, child) })
}

func (s *suite) killsOne(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{Cmd: []string{"sh", "-c", `trap "exit 4" USR1; echo set; while :; do sleep 0.05; done`}})
	readLine(t, p.Stdout())
	if err := p.Signal(int(syscall.SIGUSR1), false); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 4 {
		t.Errorf("exit: got %+v, want the trap's code 4", exit)
	}
}

// alive tells whether a process of the box runs; one that only waits to be reaped
// does not.
func (s *suite) alive(t *testing.T, id core.BoxID, pid string) bool {
	t.Helper()
	r := s.sh(t, id, fmt.Sprintf("test -e /proc/%s && ! grep -q ') Z' /proc/%s/stat", pid, pid))
	return r.exit.Code == 0
}

func (s *suite) runsConcurrently(t *testing.T) {
	st := s.box(t)
	x := s.execer(t)
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			p, err := x.Exec(deadline(t), core.BoxRef{ID: st.ID}, core.ExecSpec{
				Cmd: []string{"sh", "-c", fmt.Sprintf("cat; echo err %d >&2; exit %d", i, i)}, Stdin: true,
			})
			if err != nil {
				t.Errorf("exec %d: %v", i, err)
				return
			}
			defer p.Close()
			r := drain(p, fmt.Sprint(i))
			if r.stdout != fmt.Sprint(i) || r.stderr != fmt.Sprintf("err %d\n", i) || r.exit.Code != i {
				t.Errorf("exec %d: got %+v", i, r)
			}
		})
	}
	within(t, "the end of all", all.Wait)
}

func (s *suite) countsExecs(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{Cmd: []string{"cat"}, Stdin: true})
	eventually(t, "a state with one exec", func() bool { return s.inspect(t, st.ID).Execs == 1 })
	p.Stdin().Close()
	wait(t, p)
	eventually(t, "a state without execs", func() bool { return s.inspect(t, st.ID).Execs == 0 })
}

func (s *suite) givesTerminal(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{
		Cmd: []string{"sh", "-c", "test -t 0 && stty -echo && stty size && read x && stty size && exit 6"},
		TTY: true, Stdin: true, Size: core.WindowSize{Rows: 30, Cols: 100},
	})
	if got := strings.TrimSpace(readLine(t, p.Stdout())); got != "30 100" {
		t.Errorf("size at the start: got %q, want %q", got, "30 100")
	}
	if err := p.Resize(core.WindowSize{Rows: 41, Cols: 121}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin().Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(readLine(t, p.Stdout())); got != "41 121" {
		t.Errorf("size after resize: got %q, want %q", got, "41 121")
	}
	if exit := wait(t, p); exit.Code != 6 {
		t.Errorf("exit: got %+v, want code 6", exit)
	}
}
