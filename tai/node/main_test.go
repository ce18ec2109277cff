package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/tai/node"
)

// taiBinary is the program under test, built once.
var taiBinary string

// countSleeps is a shell command that needs no more than a minimal system has.
const countSleeps = `grep -lx sleep /proc/[0-9]*/comm 2>/dev/null | wc -l`

// probeEnv makes this program one that tries to connect to its arguments, for
// use in a box.
const probeEnv = "TAI_TEST_PROBE"

func probe(names []string) {
	for _, name := range names {
		_, err := net.Dial("unix", name)
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Println(errno)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(probeEnv) != "" {
		probe(os.Args[1:])
		return
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "tai")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	taiBinary = filepath.Join(dir, "tai")
	args := append([]string{"build", "-buildvcs=false", "-o", taiBinary}, buildFlags...)
	build := exec.Command("go", append(args, "github.com/yaoapp/sbgw/cmd/tai")...)
	build.Env = append(os.Environ(), buildEnv)
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build tai: %w\n%s", err, out)
	}
	code := m.Run()
	if code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// needRoot skips where no box can be made.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("boxes need root")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("no runc on this machine")
	}
}

// stateDir returns a short state directory, and checks after the test that
// nothing of it is left on the machine: no process, no mount, no cgroup.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "tai")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer os.RemoveAll(dir)
		eventually(t, "processes of "+dir+" are gone", func() bool { return len(processesOf(dir)) == 0 })
		for _, pid := range processesOf(dir) {
			unix.Kill(pid, unix.SIGKILL)
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(dir)) {
			t.Errorf("mounts of %s are left (%v):\n%s", dir, err, mounts)
		}
		sum := sha256.Sum256([]byte(dir))
		name := "sbgw-" + hex.EncodeToString(sum[:4]) + "-*"
		for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
			if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
				t.Errorf("cgroups are left: %v, %v", left, err)
			}
		}
		if left, err := os.ReadDir(filepath.Join(dir, "boxes")); err == nil && len(left) > 0 {
			t.Errorf("boxes are left: %v", left)
		}
	})
	return dir
}

// processesOf returns the processes that have a path of dir on their command line.
func processesOf(dir string) []int {
	var pids []int
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		data, err := os.ReadFile(file)
		var pid int
		if err == nil && bytes.Contains(data, []byte(dir)) {
			fmt.Sscanf(file, "/proc/%d/", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Errorf("waited in vain until %s", what)
}

// openRuntime opens a runtime in this process. At the end its boxes are removed.
func openRuntime(t *testing.T, hide ...string) *node.Runtime {
	t.Helper()
	needRoot(t)
	return openIn(t, stateDir(t), hide...)
}

func openIn(t *testing.T, dir string, hide ...string) *node.Runtime {
	t.Helper()
	r, err := node.Open(t.Context(), node.Options{
		StateDir: dir, Socket: filepath.Join(dir, "node.sock"), Hide: hide, Binary: taiBinary,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		removeAll(t, r, dir)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// removeAll removes the boxes of a node, after a look at what their shims said.
func removeAll(t *testing.T, b core.Backend, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "boxes/*/shim.log"))
	if err != nil {
		t.Error(err)
	}
	for _, name := range logs {
		data, err := os.ReadFile(name)
		if err != nil || bytes.Contains(data, []byte("DATA RACE")) || bytes.Contains(data, []byte("panic:")) {
			t.Errorf("shim's log: %v\n%s", err, data)
		}
	}
	boxes, err := b.List(context.Background())
	if err != nil {
		t.Error(err)
	}
	for _, s := range boxes {
		if err := b.Remove(context.Background(), core.BoxRef{ID: s.ID}); err != nil {
			t.Error(err)
		}
	}
}

func create(t *testing.T, b core.Backend, s core.BoxSpec) core.BoxState {
	t.Helper()
	if s.Image == "" {
		s.Image = "host"
	}
	state, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatalf("create %s: %v", s.ID, err)
	}
	if !s.NotStarted && state.Status != core.StatusRunning && len(s.Cmd) == 0 {
		t.Fatalf("box %s is %s", s.ID, state.Status)
	}
	return state
}

// result is a finished command.
type result struct {
	core.ExecExit
	stdout, stderr string
}

// run runs a command to its end.
func run(t *testing.T, b core.Execer, id core.BoxID, s core.ExecSpec) result {
	t.Helper()
	return runInput(t, b, id, s, "")
}

func runInput(t *testing.T, b core.Execer, id core.BoxID, s core.ExecSpec, input string) result {
	t.Helper()
	p, err := b.Exec(t.Context(), core.BoxRef{ID: id}, s)
	if err != nil {
		t.Fatalf("exec %q: %v", s.Cmd, err)
	}
	defer p.Close()
	return collect(t, p, input)
}

func collect(t *testing.T, p core.Process, input string) result {
	t.Helper()
	var r result
	var streams sync.WaitGroup
	var out, errOut []byte
	streams.Go(func() { out, _ = io.ReadAll(p.Stdout()) })
	streams.Go(func() { errOut, _ = io.ReadAll(p.Stderr()) })
	if input != "" {
		if _, err := io.WriteString(p.Stdin(), input); err != nil {
			t.Errorf("write input: %v", err)
		}
	}
	p.Stdin().Close()
	exit, err := p.Wait()
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	streams.Wait()
	r.ExecExit, r.stdout, r.stderr = exit, string(out), string(errOut)
	return r
}

// sh runs a shell script that must succeed, and returns its output.
func sh(t *testing.T, b core.Execer, id core.BoxID, script string) string {
	t.Helper()
	r := run(t, b, id, core.ExecSpec{Cmd: []string{"sh", "-c", script}})
	if r.Code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", script, r.Code, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// plant writes a file of the machine for the test, with the directories it needs.
func plant(t *testing.T, path, content string) {
	t.Helper()
	var made []string
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		made = append(made, dir)
	}
	for _, dir := range slices.Backward(made) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, dir := range made {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
