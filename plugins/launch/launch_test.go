package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/core/coretest"
	"github.com/yaoapp/sbgw/core/coretest/fake"
)

func TestConformance(t *testing.T) {
	dir, state := fakeDir(t, "fake"), shortDir(t)
	skip := map[string]string{
		"lifecycle/stop_grace": "a fake box is killed at once",
		"files/read_only":      "a fake box has no mounts of its own",
	}
	if os.Geteuid() != 0 {
		skip["exec/user"] = "another user needs root"
	}
	coretest.Run(t, coretest.Harness{
		Open:  func(t *testing.T) core.Backend { return open(t, launcher(t, Options{Dir: dir, StateDir: state}), "p") },
		Files: coretest.DirFiles,
		Image: fake.Image,
		Skip:  skip,
	})
}

func create(t *testing.T, b core.Backend, id core.BoxID) core.BoxState {
	t.Helper()
	st, err := b.Create(t.Context(), core.BoxSpec{ID: id, Image: fake.Image})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return st
}

func execer(t *testing.T, b core.Backend) core.Execer {
	t.Helper()
	x, err := core.Has[core.Execer](t.Context(), b, core.AbilityExec)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// kill sends SIGKILL to the plugin and returns its number.
func kill(t *testing.T, l *Launcher) int {
	t.Helper()
	pid := l.Plugins()[0].PID
	if pid == 0 {
		t.Fatalf("no plugin process: %+v", l.Plugins()[0])
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestPluginKilled(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	b := open(t, l, "p")
	st := create(t, b, "box")
	x := execer(t, b)
	for round := range 5 {
		p, err := x.Exec(t.Context(), core.BoxRef{ID: "box"}, core.ExecSpec{Cmd: []string{"cat"}, Stdin: true})
		if err != nil {
			t.Fatalf("round %d: exec: %v", round, err)
		}
		old := kill(t, l)
		if _, err := p.Wait(); !errors.Is(err, core.ErrPluginGone) {
			t.Errorf("round %d: wait: got %v, want kind %q", round, err, core.ErrPluginGone)
		}
		p.Close()
		states, err := b.List(t.Context()) // waits for the successor
		if err != nil || len(states) != 1 || states[0].Incarnation != st.Incarnation {
			t.Errorf("round %d: list: got %+v, %v, want the same box", round, states, err)
		}
		p, err = x.Exec(t.Context(), core.BoxRef{ID: "box"}, core.ExecSpec{Cmd: []string{"echo", "on"}})
		if err != nil {
			t.Fatalf("round %d: exec after it: %v", round, err)
		}
		if out, _ := io.ReadAll(p.Stdout()); string(out) != "on\n" {
			t.Errorf("round %d: output: got %q", round, out)
		}
		p.Close()
		if now := l.Plugins()[0]; now.PID == old || now.State != Ready || now.Restarts != round+1 {
			t.Errorf("round %d: plugin: got %+v, want another process than %d", round, now, old)
		}
	}
}

func TestPluginKilledRestartsFast(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	open(t, l, "p")
	old := kill(t, l)
	began := time.Now()
	eventually(t, "the restart", 10*time.Second, func() bool {
		s := l.Plugins()[0]
		return s.State == Ready && s.PID != old && l.Ready("p") == nil
	})
	t.Logf("restarted after %s", time.Since(began).Round(time.Millisecond))
}

func TestWatchEndsWithPlugin(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	b := open(t, l, "p")
	synced, ended := make(chan bool, 1), make(chan error, 1)
	go func() {
		ended <- b.Watch(context.Background(), "", func(e core.BoxEvent) error {
			if e.Synced {
				synced <- true
			}
			return nil
		})
	}()
	<-synced
	kill(t, l)
	if err := <-ended; !errors.Is(err, core.ErrPluginGone) {
		t.Errorf("watch: got %v, want kind %q", err, core.ErrPluginGone)
	}
}

func TestPluginStuck(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake"), beatTimeout: 3 * time.Second})
	b := open(t, l, "p")
	create(t, b, "box")
	pid := l.Plugins()[0].PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Inspect(t.Context(), "box"); err != nil { // hangs, fails, is made again
		t.Errorf("inspect at a stuck plugin: %v", err)
	}
	if s := l.Plugins()[0]; s.PID == pid || !strings.Contains(s.Reason, "no sign of life") {
		t.Errorf("plugin: got %+v, want another process, with the reason", s)
	}
}

func TestHostKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state := shortDir(t)
	host := exec.Command(self, fakeDir(t, "fake"), state)
	host.Env = append(os.Environ(), roleVar+"=host")
	host.Stderr = os.Stderr
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	defer host.Wait()
	defer host.Process.Kill()
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatalf("host did not tell its plugin's pid: %v", err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("plugin %d: %v", pid, err)
	}
	host.Process.Kill()
	eventually(t, "the plugin's end", 5*time.Second, func() bool { return !running(pid) })
	New(Options{StateDir: state})
	if left, _ := filepath.Glob(filepath.Join(state, "plugins", "*")); len(left) > 0 {
		t.Errorf("a successor left %v", left)
	}
}

// running tells whether a process is there and not only waiting to be reaped.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestShutdownEndsPlugins(t *testing.T) {
	state := shortDir(t)
	l := launcher(t, Options{Dir: fakeDir(t, "fake"), StateDir: state})
	b := open(t, l, "p")
	pid := l.Plugins()[0].PID
	l.Shutdown()
	if running(pid) {
		t.Errorf("plugin %d still runs", pid)
	}
	if _, err := b.List(t.Context()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("call after shutdown: got %v, want kind %q", err, core.ErrUnavailable)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "plugins", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := l.Open(t.Context(), fakePool("q")); !errors.Is(err, core.ErrNotAvailable) {
		t.Errorf("open after shutdown: got %v, want kind %q", err, core.ErrNotAvailable)
	}
}

func TestPluginSeesLittle(t *testing.T) {
	t.Setenv("SBGW_TEST_SECRET", "s3cret")
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	open(t, l, "p")
	proc := "/proc/" + strconv.Itoa(l.Plugins()[0].PID)
	env, err := os.ReadFile(proc + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	for kv := range strings.SplitSeq(strings.TrimRight(string(env), "\x00"), "\x00") {
		key, _, _ := strings.Cut(kv, "=")
		switch {
		case key == "PATH", key == "HOME", key == "TMPDIR", key == "LANG", key == "PWD", key == "OLDPWD", key == "_":
		case strings.HasPrefix(key, "PLUGIN_"), key == "SBGW_PLUGIN", key == "SBGW_PLUGIN_PIPE", key == roleVar:
		default:
			t.Errorf("the plugin got %s", key)
		}
	}
	if dir, _ := os.Readlink(proc + "/cwd"); dir != "/" {
		t.Errorf("working directory: got %s, want /", dir)
	}
	if in, _ := os.Readlink(proc + "/fd/0"); in != "/dev/null" {
		t.Errorf("standard input: got %s, want /dev/null", in)
	}
}
