package tai_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/plugins/launch"
	"github.com/yaoapp/sbgw/plugins/tai"
)

// box makes a box that is removed when the test ends.
func box(t *testing.T, b core.Backend) core.BoxState {
	t.Helper()
	st, err := b.Create(t.Context(), core.BoxSpec{ID: "box", Image: "host"})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Remove(t.Context(), core.BoxRef{ID: "box"}); err != nil && t.Context().Err() == nil {
			t.Errorf("remove: %v", err)
		}
	})
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

// say runs a command and returns its output.
func say(t *testing.T, b core.Backend, cmd ...string) string {
	t.Helper()
	p, err := execer(t, b).Exec(t.Context(), core.BoxRef{ID: "box"}, core.ExecSpec{Cmd: cmd})
	if err != nil {
		t.Fatalf("exec %q: %v", cmd, err)
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatalf("exec %q: %v", cmd, err)
	}
	return string(out)
}

// long starts a command that runs until its standard input ends, and returns its
// number in the box.
func long(t *testing.T, b core.Backend) (core.Process, string) {
	t.Helper()
	p, err := execer(t, b).Exec(t.Context(), core.BoxRef{ID: "box"}, core.ExecSpec{
		Cmd: []string{"sh", "-c", "echo $$; exec sleep 1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return p, strings.TrimSpace(line)
}

// lives tells whether the command of long goes on.
func lives(t *testing.T, b core.Backend, pid string) bool {
	t.Helper()
	return say(t, b, "cat", "/proc/"+pid+"/comm") == "sleep\n"
}

func remove(t *testing.T, b core.Backend) {
	t.Helper()
	if err := b.Remove(t.Context(), core.BoxRef{ID: "box"}); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func TestPluginKilled(t *testing.T) {
	state := stateDir(t)
	l, b := open(t, state)
	st := box(t, b)
	defer remove(t, b)
	lock := filepath.Join(state, "pools/p/node.lock")
	node := readPID(t, lock)
	for round := range 5 {
		p, pid := long(t, b)
		if err := syscall.Kill(l.Plugins()[0].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(); !errors.Is(err, core.ErrPluginGone) {
			t.Errorf("round %d: wait: got %v, want kind %q", round, err, core.ErrPluginGone)
		}
		if !lives(t, b, pid) {
			t.Errorf("round %d: the process in the box did not outlive the plugin", round)
		}
		if got, err := b.Inspect(t.Context(), "box"); err != nil || got.Incarnation != st.Incarnation {
			t.Errorf("round %d: box: got %+v, %v, want incarnation %q", round, got, err, st.Incarnation)
		}
	}
	if got := readPID(t, lock); got != node {
		t.Errorf("node: got process %d, want the same %d as before", got, node)
	}
}

func TestNodeKilled(t *testing.T) {
	state := stateDir(t)
	l, b := open(t, state)
	st := box(t, b)
	defer remove(t, b)
	lock := filepath.Join(state, "pools/p/node.lock")
	plugin := l.Plugins()[0].PID
	for round := range 5 {
		p, pid := long(t, b)
		if err := syscall.Kill(readPID(t, lock), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		if _, err := p.Wait(); !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("round %d: wait: got %v, want kind %q", round, err, core.ErrUnavailable)
		}
		if got, err := b.Inspect(t.Context(), "box"); err != nil || got.Incarnation != st.Incarnation {
			t.Errorf("round %d: box: got %+v, %v, want incarnation %q", round, got, err, st.Incarnation)
		}
		t.Logf("round %d: answered %s after the kill", round, time.Since(killed).Round(time.Millisecond))
		if !lives(t, b, pid) {
			t.Errorf("round %d: the process in the box did not outlive the node", round)
		}
	}
	if got := l.Plugins()[0].PID; got != plugin {
		t.Errorf("plugin: got process %d, want the same %d as before", got, plugin)
	}
}

// TestNewSettings: paths hidden since the node was started are hidden from new
// boxes.
func TestNewSettings(t *testing.T) {
	state := stateDir(t)
	secret := filepath.Join("/opt", filepath.Base(state))
	if err := os.MkdirAll(secret, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(secret)
	if err := os.WriteFile(filepath.Join(secret, "key"), []byte("s3cret"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, b := open(t, state)
	box(t, b)
	if got := say(t, b, "cat", secret+"/key"); got != "s3cret" {
		t.Fatalf("a file not hidden: got %q", got)
	}
	remove(t, b)
	lock := filepath.Join(state, "pools/p/node.lock")
	node := readPID(t, lock)
	l.Shutdown()

	again := launcher(t, state)
	b, err := again.Open(t.Context(), local(map[string]any{"hide": []string{secret}}))
	if err != nil {
		t.Fatal(err)
	}
	if got := readPID(t, lock); got == node {
		t.Errorf("the node with the old settings still runs")
	}
	box(t, b)
	defer remove(t, b)
	if got := say(t, b, "sh", "-c", "cat "+secret+"/key 2>&1"); strings.Contains(got, "s3cret") {
		t.Error("a hidden file was read in a box")
	}
}

func TestDirect(t *testing.T) {
	state := stateDir(t)
	b, err := launcher(t, state).Open(t.Context(), local(map[string]any{"direct": true}))
	if err != nil {
		t.Fatal(err)
	}
	v, err := core.Has[core.VolumeOpener](t.Context(), b, core.AbilityVolume)
	if err != nil {
		t.Fatal(err)
	}
	for session, name := range map[core.VolumeSession]string{"vol": "vol", "user/chat": "user%2Fchat"} {
		e, err := v.OpenVolume(t.Context(), session, true)
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(state, "pools/p/volumes", name); e.Kind != core.EndpointDir || e.Address != want {
			t.Errorf("endpoint: got %+v, want directory %s", e, want)
		}
		if st, err := os.Stat(e.Address); err != nil || !st.IsDir() {
			t.Errorf("its directory: %v", err)
		}
	}
	if _, err := v.OpenVolume(t.Context(), "absent", false); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("an absent volume: got %v, want kind %q", err, core.ErrNotFound)
	}
}

// TestNodeFails: a node that can't run says why.
func TestNodeFails(t *testing.T) {
	state := stateDir(t)
	if err := os.MkdirAll(filepath.Join(state, "pools/p"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "pools/p/boxes"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := launcher(t, state)
	b, err := l.Open(t.Context(), local(nil))
	if err != nil {
		t.Fatalf("open: %v, want it to be left to supervision", err)
	}
	err = l.Ready("p")
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "boxes") {
		t.Errorf("ready: got %v, want kind %q and what the node said", err, core.ErrUnavailable)
	}
	if err := os.Remove(filepath.Join(state, "pools/p/boxes")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", func() bool { return l.Ready("p") == nil })
	if _, err := b.List(t.Context()); err != nil {
		t.Errorf("call after recovery: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		cfg     core.PoolConfig
		kind    error
		message string
	}{
		{"unknown options", core.PoolConfig{Addr: "local", Options: []byte(`{"colour":1,"size":2}`)}, core.ErrInvalid, "unknown option colour (known: direct, hide); unknown option size"},
		{"wrong type", core.PoolConfig{Addr: "local", Options: []byte(`{"direct":"yes"}`)}, core.ErrInvalid, "direct is not true or false"},
		{"relative path", core.PoolConfig{Addr: "local", Options: []byte(`{"hide":["a"]}`)}, core.ErrInvalid, "a is not an absolute path"},
		{"no table", core.PoolConfig{Addr: "local", Options: []byte(`[]`)}, core.ErrInvalid, "not a table"},
		{"bad delay", core.PoolConfig{Addr: "local", Options: []byte(`{"test_event_delay":"-1s"}`)}, core.ErrInvalid, "not a duration"},
		{"another address", core.PoolConfig{Addr: "tai://host"}, core.ErrUnsupported, "node addresses other than local"},
		{"long state directory", core.PoolConfig{Addr: "local", StateDir: "/" + strings.Repeat("x", 120)}, core.ErrInvalid, "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.Name = "p"
			_, err := tai.New("test", nil).Open(t.Context(), c.cfg)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("open: got %v, want kind %q with %q", err, c.kind, c.message)
			}
		})
	}
}

// TestNoBinary: without the tai program the error says where it was looked for.
func TestNoBinary(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	_, err := tai.New("test", nil).Open(t.Context(), core.PoolConfig{Name: "p", Addr: "local", StateDir: t.TempDir()})
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "nor in PATH") {
		t.Errorf("open: got %v, want kind %q telling where it was looked for", err, core.ErrUnavailable)
	}
}

// TestSharedNode: two gateways' plugins may start at the same time; the node that
// lost the race for the state directory is no error.
func TestSharedNode(t *testing.T) {
	state := stateDir(t)
	opened := make(chan error, 2)
	for _, l := range []*launch.Launcher{launcher(t, state), launcher(t, state)} {
		go func() {
			_, err := l.Open(t.Context(), local(nil))
			if err == nil {
				err = l.Ready("p")
			}
			opened <- err
		}()
	}
	for range 2 {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}
