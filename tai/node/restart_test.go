package node_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/tai"
	"github.com/yaoapp/sbgw/tai/shim"
)

// server is a node in a process of its own.
type server struct {
	cmd *exec.Cmd
	log *bytes.Buffer
}

// serve starts `tai serve` and returns when it answers. At the end the boxes are
// removed and the node is ended.
func serve(t *testing.T, dir string) *server {
	t.Helper()
	return serveAs(t, dir, taiBinary, "serve", "--socket", filepath.Join(dir, "node.sock"), "--state", dir)
}

// serveAs starts a node by a command that ends up as `tai serve` with a socket in dir.
func serveAs(t *testing.T, dir string, argv ...string) *server {
	t.Helper()
	s := &server{log: &bytes.Buffer{}}
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Stderr = s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill(unix.SIGTERM)
		if strings.Contains(s.log.String(), "DATA RACE") {
			t.Error("data race in the node")
		}
		if t.Failed() {
			t.Logf("the node's log:\n%s", s.log)
		}
	})
	b := dial(t, dir)
	eventually(t, "the node answers", func() bool {
		_, err := b.Describe(t.Context())
		return err == nil
	})
	if t.Failed() {
		t.Fatalf("node: %s", s.log)
	}
	return s
}

func (s *server) kill(sig unix.Signal) error {
	if err := s.cmd.Process.Signal(sig); err != nil {
		return nil // gone already
	}
	return s.cmd.Wait()
}

// client is a node's backend with its abilities.
type client interface {
	core.Backend
	core.Execer
	core.VolumeOpener
	core.VolumeRemover
}

func dial(t *testing.T, dir string) client {
	t.Helper()
	c, err := tai.Dial(filepath.Join(dir, "node.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.Backend("p").(client)
}

func TestNodeKilled(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	first := serve(t, dir)
	b := dial(t, dir)
	if _, err := b.OpenVolume(t.Context(), "v1", true); err != nil {
		t.Fatal(err)
	}
	made := create(t, b, core.BoxSpec{ID: "b1", Mounts: []core.VolumeMount{{Session: "v1", Target: "/workspace"}}, WorkDir: "/workspace"})
	create(t, b, core.BoxSpec{ID: "b2", Cmd: []string{"sh", "-c", "sleep 1; exit 5"}})
	p, err := b.Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{
		Cmd: []string{"sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.01; done; head -c 1000000 /dev/zero; echo through > done; sleep 600"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := bufio.NewReader(p.Stdout()).ReadString('\n'); err != nil {
		t.Fatal(err)
	}

	first.kill(unix.SIGKILL)
	if _, err := p.Wait(); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("wait of a process whose node is gone: %v, want ErrUnavailable", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "volumes/v1/go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process gets on without a node", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "volumes/v1/done"))
		return err == nil && string(data) == "through\n"
	})
	eventually(t, "the other box ends without a node", func() bool {
		_, err := shim.ReadExit(filepath.Join(dir, "boxes/b2"))
		return err == nil
	})

	serve(t, dir)
	t.Cleanup(func() { removeAll(t, b, dir) })
	again, err := b.Inspect(t.Context(), "b1")
	if err != nil || again.Incarnation != made.Incarnation || again.Status != core.StatusRunning || again.Execs != 1 {
		t.Errorf("the box after the node's restart: %+v, %v, want %+v", again, err, made)
	}
	other, err := b.Inspect(t.Context(), "b2")
	if err != nil || other.Status != core.StatusStopped || other.ExitCode == nil || *other.ExitCode != 5 {
		t.Errorf("the other box after the node's restart: %+v, %v", other, err)
	}
	if got := sh(t, b, "b1", countSleeps+"; cat done"); got != "1\nthrough" {
		t.Errorf("the process after the node's restart: %q", got)
	}
	if err := b.RemoveVolume(t.Context(), "v1"); !errors.Is(err, core.ErrConflict) {
		t.Errorf("remove a volume in use: %v, want ErrConflict", err)
	}
	if err := b.Remove(t.Context(), core.BoxRef{ID: "b1"}); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveVolume(t.Context(), "v1"); err != nil {
		t.Errorf("remove a volume: %v", err)
	}
	if _, err := b.OpenVolume(t.Context(), "v1", false); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("open a removed volume: %v, want ErrNotFound", err)
	}
}

// A box whose shim is killed is killed too, and says so, with and without a node
// that looks on.
func TestShimKilled(t *testing.T) {
	for _, watched := range []bool{true, false} {
		t.Run(map[bool]string{true: "watched", false: "alone"}[watched], func(t *testing.T) {
			needRoot(t)
			dir := stateDir(t)
			node := serve(t, dir)
			b := dial(t, dir)
			create(t, b, core.BoxSpec{ID: "b1"})
			sh(t, b, "b1", "echo kept > /kept")
			if !watched {
				node.kill(unix.SIGKILL)
			}
			killed := false
			for _, pid := range processesOf(filepath.Join(dir, "boxes/b1")) {
				killed = unix.Kill(pid, unix.SIGKILL) == nil
			}
			if !killed {
				t.Fatal("no shim found")
			}
			if !watched {
				serve(t, dir)
			}
			t.Cleanup(func() { removeAll(t, b, dir) })
			eventually(t, "the box is stopped", func() bool {
				s, err := b.Inspect(t.Context(), "b1")
				return err == nil && s.Status == core.StatusStopped
			})
			s, err := b.Inspect(t.Context(), "b1")
			if err != nil || s.Reason != core.ReasonNodeLost || s.ExitCode != nil {
				t.Errorf("the box: %+v, %v, want node-lost and no code", s, err)
			}
			if _, err := b.Start(t.Context(), core.BoxRef{ID: "b1"}); err != nil {
				t.Fatal(err)
			}
			if got := sh(t, b, "b1", "cat /kept"); got != "kept" {
				t.Errorf("a file of before: %q", got)
			}
		})
	}
}

func TestSecondNode(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	first := serve(t, dir)
	out, err := exec.Command(taiBinary, "serve", "--socket", filepath.Join(dir, "other.sock"), "--state", dir).CombinedOutput()
	want := "in use by the node with pid " + strconv.Itoa(first.cmd.Process.Pid)
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("a second node: %v, %q, want %q", err, out, want)
	}
	out, err = exec.Command(taiBinary, "serve", "--socket", "/tmp/"+strings.Repeat("x", 120), "--state", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "at most 107") {
		t.Errorf("a long socket path: %v, %q", err, out)
	}
}

// The volume of a box is adopted by its user, and one event covers what an exec
// wrote.
func TestVolume(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	serve(t, dir)
	b := dial(t, dir)
	t.Cleanup(func() { removeAll(t, b, dir) })
	e, err := b.OpenVolume(t.Context(), "user/chat", true)
	if err != nil || e.Kind != core.EndpointUnix || e.Session != "user/chat" || e.Instance == "" {
		t.Fatalf("open volume: %+v, %v", e, err)
	}
	create(t, b, core.BoxSpec{
		ID: "b1", User: "nobody", WorkDir: "/workspace/sub",
		Mounts: []core.VolumeMount{{Session: "user/chat", Target: "/workspace"}},
	})
	got := run(t, b, "b1", core.ExecSpec{Cmd: []string{"sh", "-c", "echo hi > f; echo hi > ../f"}})
	if got.Code != 0 || got.Event.Session != "user/chat" || got.Event.Boot == "" {
		t.Errorf("write as nobody: %+v", got)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "volumes/user%2Fchat/sub/f")); err != nil || string(data) != "hi\n" {
		t.Errorf("the file: %q, %v", data, err)
	}
	for _, name := range []string{"", ".", "..", "a/../b", "a/b/c", "/a", strings.Repeat("x", 256)} {
		if _, err := b.OpenVolume(t.Context(), core.VolumeSession(name), true); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("volume %q: %v, want ErrInvalid", name, err)
		}
	}
}

// A process that outlives its caller's connection is not killed by it.
func TestCallerGone(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	serve(t, dir)
	b := dial(t, dir)
	t.Cleanup(func() { removeAll(t, b, dir) })
	create(t, b, core.BoxSpec{ID: "b1"})
	c, err := tai.Dial("unix://" + filepath.Join(dir, "node.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Backend("p").(core.Execer).Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{
		Cmd: []string{"sh", "-c", "echo up; cat; head -c 1000000 /dev/zero; echo through > /done; sleep 600"}, Stdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process gets on alone", func() bool {
		return run(t, b, "b1", core.ExecSpec{Cmd: []string{"test", "-e", "/done"}}).Code == 0
	})
	eventually(t, "its exec alone is counted", func() bool {
		s, err := b.Inspect(t.Context(), "b1")
		return err == nil && s.Execs == 1
	})
	began := time.Now()
	if err := b.Remove(t.Context(), core.BoxRef{ID: "b1"}); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("remove: %v after %s", err, time.Since(began))
	}
}
