package mountd_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs/fusetest"
	"github.com/yaoapp/sbgw/fusefs/mountd"
)

func TestMain(m *testing.M) { fusetest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAttachAgainAndDetach(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	f, err := os.Create(filepath.Join(m.Path, "f"))
	must(t, err)
	defer f.Close()
	m.Attach() // the same: nothing happens

	moved := m.Endpoint()
	moved.Token = []byte("another")
	opts := core.MountOptions{Symlinks: "raw", Owner: "none"}
	if path, err := m.Client.Attach(t.Context(), fusetest.Workspace, moved, opts); err != nil || path != m.Path {
		t.Fatalf("bind again: %q, %v", path, err)
	}
	if _, err := f.WriteString("after"); err != nil {
		t.Errorf("write to a file open over a rebind: %v", err)
	}
	states, err := m.Client.Mounts(t.Context())
	must(t, err)
	if len(states) != 1 || states[0].Link != "up" || states[0].OpenFiles != 1 || states[0].Path != m.Path {
		t.Errorf("mounts: %+v", states)
	}

	begin := time.Now()
	must(t, m.Client.Detach(t.Context(), fusetest.Workspace)) // busy: f is open
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("detach took %v", d)
	}
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, unix.ESTALE) && !errors.Is(err, unix.EIO) {
		t.Errorf("write after detach: %v, want ESTALE", err)
	}
	if _, err := os.Lstat(m.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("mount point after detach: %v, want it gone", err)
	}
	must(t, m.Client.Detach(t.Context(), fusetest.Workspace))
	if err := m.Client.Settle(t.Context(), fusetest.Workspace); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("settle of no mount: %v, want ErrNotFound", err)
	}
}

func TestBadAttach(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	opts := core.MountOptions{Symlinks: "raw", Owner: "none"}
	dead := core.Endpoint{Kind: core.EndpointUnix, Address: filepath.Join(m.Root(), "absent.sock")}
	if _, err := m.Client.Attach(t.Context(), "dead", dead, opts); err == nil {
		t.Error("attach of a volume that does not answer succeeded")
	}
	if _, err := os.Lstat(filepath.Join(m.Root(), "dead")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed attach leaves its directory: %v", err)
	}
	for _, name := range []core.WorkspaceID{"", "a/b", "..", ".hidden", core.WorkspaceID(strings.Repeat("n", 300))} {
		if _, err := m.Client.Attach(t.Context(), name, m.Endpoint(), opts); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("workspace %q: %v, want ErrInvalid", name, err)
		}
	}
	opts.Symlinks = "sometimes"
	if _, err := m.Client.Attach(t.Context(), "w", m.Endpoint(), opts); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("unknown policy: %v, want ErrInvalid", err)
	}
}

// TestKilled: after SIGKILL of the mount process another one takes the dead
// mounts away and serves again; users of the dead mount get an error, not a hang,
// although duplicates of the descriptor were kept.
func TestKilled(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	must(t, os.WriteFile(filepath.Join(m.Path, "f"), []byte("x"), 0o644))
	must(t, m.Client.KeepFDs())
	fusetest.Eventually(t, 5*time.Second, "a descriptor is kept", func() bool { return m.Client.Kept() == 1 })
	m.KillMountd()
	select {
	case <-m.Client.Gone():
	case <-time.After(5 * time.Second):
		t.Fatal("the end of the mount process is not noticed")
	}
	if _, err := os.ReadFile(filepath.Join(m.Path, "f")); err == nil {
		t.Error("read through a dead mount succeeded")
	}
	must(t, m.Client.Close())
	m.StartMountd()
	m.Attach()
	if b, err := os.ReadFile(filepath.Join(m.Path, "f")); err != nil || string(b) != "x" {
		t.Errorf("read after the new start: %q, %v", b, err)
	}
}

func TestBadRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	base := t.TempDir()
	for name, prepare := range map[string]func(root string) error{
		"file":          func(r string) error { return os.WriteFile(filepath.Join(r, "f"), nil, 0o644) },
		"full dir":      func(r string) error { return os.MkdirAll(filepath.Join(r, "d/e"), 0o755) },
		"foreign mount": func(r string) error { return unix.Mount("tmpfs", r, "tmpfs", 0, "") },
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(base, name)
			must(t, os.Mkdir(root, 0o755))
			must(t, prepare(root))
			defer unix.Unmount(root, unix.MNT_DETACH)
			err := mountd.Run(t.Context(), mountd.Config{
				Socket: filepath.Join(base, "m"), FDSocket: filepath.Join(base, "f"), Root: root})
			if !errors.Is(err, core.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

func TestSecondProcess(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	base := filepath.Dir(m.Root())
	err := mountd.Run(t.Context(), mountd.Config{
		Socket: filepath.Join(base, "m.sock"), FDSocket: filepath.Join(base, "f.sock"), Root: m.Root()})
	if !errors.Is(err, core.ErrConflict) || !strings.Contains(err.Error(), "pid ") {
		t.Errorf("same socket: %v, want ErrConflict with a pid", err)
	}
	err = mountd.Run(t.Context(), mountd.Config{
		Socket: filepath.Join(base, "m2"), FDSocket: filepath.Join(base, "f2"), Root: m.Root()})
	if !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), "pid ") {
		t.Errorf("same root: %v, want ErrInvalid with a pid", err)
	}
}

// TestUnprivileged mounts by the set-uid helper.
func TestUnprivileged(t *testing.T) {
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("no fusermount3 here")
	}
	const user = 65534
	if st, err := os.Stat("/dev/fuse"); err != nil || st.Mode().Perm()&0o006 != 0o006 {
		t.Skip("/dev/fuse is not for everybody here")
	}
	m := fusetest.New(t, fusetest.Options{Owner: "squash", UID: user, GID: user, User: user})
	cmd := exec.Command("sh", "-c", "echo hello >"+m.Path+"/f && cat "+m.Path+"/f")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "hello\n" {
		t.Errorf("the user's own mount: %q, %v", out, err)
	}
	must(t, m.Client.Detach(t.Context(), fusetest.Workspace))
	if _, err := os.Lstat(m.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("mount point after detach: %v", err)
	}
}

func TestSocketPathTooLong(t *testing.T) {
	_, err := mountd.Connect(t.Context(), "/tmp/"+strings.Repeat("n", 110), "/tmp/f")
	if !errors.Is(err, core.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// TestEnsure starts a process that does not become a mount process, then none.
func TestEnsure(t *testing.T) {
	base := t.TempDir()
	s := mountd.Spawn{Socket: filepath.Join(base, "m"), FDSocket: filepath.Join(base, "f"), LogFile: filepath.Join(base, "log"),
		Argv: []string{"/bin/sh", "-c", "echo the reason >&2; exit 1"}}
	_, err := mountd.Ensure(t.Context(), s)
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("got %v, want ErrUnavailable with what the process said", err)
	}
	s.Argv = []string{filepath.Join(base, "absent")}
	if _, err := mountd.Ensure(t.Context(), s); !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}

// TestEnsureFinds: a running process is found and not started again.
func TestEnsureFinds(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	base := filepath.Dir(m.Root())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := mountd.Ensure(ctx, mountd.Spawn{Socket: filepath.Join(base, "m.sock"), FDSocket: filepath.Join(base, "f.sock"),
		LogFile: filepath.Join(base, "log"), Argv: []string{"/bin/false"}})
	must(t, err)
	defer c.Close()
	info, err := c.Info(ctx)
	must(t, err)
	if info.Root != m.Root() || info.Version != "test" || info.PID == 0 {
		t.Errorf("info: %+v", info)
	}
}
