package fusefs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs/fusetest"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/volume"
)

func TestSquash(t *testing.T) {
	const owner, boxUser = 1234, 1000
	m := fusetest.New(t, fusetest.Options{Owner: "squash", UID: owner, GID: owner, AllowOther: true})
	must(t, os.Chown(m.Dir, boxUser, boxUser))
	path := filepath.Join(m.Path, "f")
	write(t, path, "x")
	must(t, os.Mkdir(filepath.Join(m.Path, "d"), 0o755))

	for _, name := range []string{"f", "d", "."} {
		var on, behind unix.Stat_t
		must(t, unix.Stat(filepath.Join(m.Path, name), &on))
		must(t, unix.Stat(filepath.Join(m.Dir, name), &behind))
		if on.Uid != owner || on.Gid != owner {
			t.Errorf("%s is shown as %d:%d, want %d", name, on.Uid, on.Gid, owner)
		}
		if behind.Uid != boxUser || behind.Gid != boxUser {
			t.Errorf("%s belongs to %d:%d behind the mount, want the root's %d", name, behind.Uid, behind.Gid, boxUser)
		}
	}
	must(t, os.Chown(path, 7, 8)) // by root: without effect
	if err := as(owner, "chown", fmt.Sprint(owner), path); err != nil {
		t.Errorf("the owner shown sets itself: %v", err)
	}
	if err := as(owner, "chown", "7", path); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("the owner shown gives a file away: %v, want EPERM", err)
	}
	if err := as(owner, "sh", "-c", "echo more >>"+path+" && mkdir "+m.Path+"/mine && chmod 700 "+path); err != nil {
		t.Errorf("the owner shown works on the mount: %v", err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(m.Dir, "f"), &st))
	if st.Uid != boxUser || st.Mode&0o777 != 0o700 {
		t.Errorf("behind the mount: uid %d mode %o", st.Uid, st.Mode)
	}
}

func TestOwnerNone(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{Owner: "none", AllowOther: true})
	must(t, os.Chmod(m.Dir, 0o777))
	fusetest.Eventually(t, 5*time.Second, "mode is seen", func() bool {
		st, err := os.Stat(m.Path)
		return err == nil && st.Mode().Perm() == 0o777
	})
	if err := as(4321, "sh", "-c", ": >"+m.Path+"/f"); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(m.Dir, "f"), &st))
	if st.Uid != 4321 || st.Gid != 4321 {
		t.Errorf("the file belongs to %d:%d, want its maker 4321", st.Uid, st.Gid)
	}
	must(t, os.Chown(filepath.Join(m.Path, "f"), 7, 8))
	must(t, unix.Stat(filepath.Join(m.Dir, "f"), &st))
	if st.Uid != 7 || st.Gid != 8 {
		t.Errorf("after chown: %d:%d", st.Uid, st.Gid)
	}
}

func TestContain(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{Symlinks: "contain"})
	must(t, os.MkdirAll(filepath.Join(m.Path, "a/b"), 0o755))
	write(t, filepath.Join(m.Path, "f"), "inside")
	for target, ok := range map[string]bool{
		"f": true, "../f": true, "../../f": true, "../../../f": false, "x/../../f": false, "./.././f": true,
		"/etc/passwd": false, m.Path + "/f": true, m.Path: true, m.Path + "/../x": false, m.Path + "x/f": false,
		"..": true, "../../..": false, "/": false, "absent": true,
	} {
		link := filepath.Join(m.Path, "a/b/link")
		must(t, os.Symlink(target, link))
		got, err := os.Readlink(link)
		switch {
		case ok && (err != nil || got != target):
			t.Errorf("target %q: got %q, %v", target, got, err)
		case !ok && !errors.Is(err, unix.EPERM):
			t.Errorf("target %q: got %q, %v, want EPERM", target, got, err)
		}
		if _, err := os.Lstat(link); err != nil {
			t.Errorf("target %q: lstat: %v", target, err)
		}
		must(t, os.Rename(link, link+"2"))
		must(t, os.Remove(link+"2"))
	}
}

func TestNoFollow(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{Symlinks: "nofollow"})
	write(t, filepath.Join(m.Path, "f"), "inside")
	must(t, os.Symlink("f", filepath.Join(m.Path, "link")))
	if _, err := os.ReadFile(filepath.Join(m.Path, "link")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("following a link: %v, want ELOOP", err)
	}
}

// TestRefresh: with events held back a second and attributes cached for one, a
// read after the barrier is never old.
func TestRefresh(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{EventDelay: time.Second})
	v, err := volume.Open(t.Context(), m.Endpoint(), volume.Options{})
	must(t, err)
	defer v.Close()
	on, behind := filepath.Join(m.Path, "f"), filepath.Join(m.Dir, "f")
	for i := range 5 {
		write(t, behind, strings.Repeat("x", i))
		_ = read(t, on) // the kernel caches
		want := strings.Repeat("y", 10+i)
		must(t, os.Remove(behind))
		write(t, behind, want)
		must(t, os.WriteFile(behind+"2", nil, 0o644))

		reply, err := v.Do(t.Context(), &volumev1.Request{Op: &volumev1.Request_Barrier{Barrier: &volumev1.Barrier{}}})
		must(t, err)
		must(t, m.Client.Refresh(t.Context(), fusetest.Workspace, core.Event{
			Boot: fmt.Sprintf("%x", v.Hello().GetBootId()), Number: reply.GetBarrier().GetEvent()}))
		if got := read(t, on); got != want {
			t.Errorf("round %d: after the barrier: %q, want %q", i, got, want)
		}
		if st, err := os.Stat(on); err != nil || st.Size() != int64(len(want)) {
			t.Errorf("round %d: stat after the barrier: %v, %v", i, st, err)
		}
	}
}

// TestKill: a caller whose server does not answer dies of SIGKILL within a
// second or so.
func TestKill(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	write(t, filepath.Join(m.Path, "f"), "x")
	m.StopVolume()
	defer m.ContinueVolume()
	cmd := exec.Command("cat", filepath.Join(m.Path, "absent"))
	must(t, cmd.Start())
	fusetest.Eventually(t, 5*time.Second, "cat waits", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		_, rest, _ := strings.Cut(string(b), ") ")
		return strings.HasPrefix(rest, "D") || waitsIn(cmd.Process.Pid, "fuse")
	})
	begin := time.Now()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if d := time.Since(begin); d > 2*time.Second {
		t.Errorf("it took %v to die", d)
	}
}

// TestServerRestart: the volume server is killed and started again; the mount,
// open files and working directories go on.
func TestServerRestart(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{})
	must(t, os.MkdirAll(filepath.Join(m.Path, "d/e"), 0o755))
	on := func(name string) string { return filepath.Join(m.Path, "d/e", name) }
	write(t, on("keep"), "kept")
	write(t, on("gone"), "lost")
	keep, err := os.OpenFile(on("keep"), os.O_RDWR, 0)
	must(t, err)
	defer keep.Close()
	gone, err := os.Open(on("gone"))
	must(t, err)
	defer gone.Close()
	dir, err := os.Open(filepath.Join(m.Path, "d"))
	must(t, err)
	defer dir.Close()

	for round := range 3 {
		m.KillVolume()
		if round == 0 {
			must(t, os.Remove(filepath.Join(m.Dir, "d/e/gone")))
			write(t, filepath.Join(m.Dir, "d/e/gone"), "another file")
		}
		m.StartVolume()
		if _, err := keep.WriteAt(fmt.Append(nil, round), int64(round)); err != nil {
			t.Fatalf("round %d: write to an open file: %v", round, err)
		}
		b := make([]byte, 4)
		if _, err := gone.ReadAt(b, 0); err == nil && string(b) != "lost" {
			t.Errorf("round %d: the descriptor of a removed file shows %q", round, b)
		}
		if got := read(t, on("gone")); got != "another file" {
			t.Errorf("round %d: the name shows %q", round, got)
		}
		if names, err := os.ReadDir(filepath.Join(m.Path, "d/e")); err != nil || len(names) != 2 {
			t.Errorf("round %d: list: %v, %v", round, names, err)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), "e/keep", &st, 0); err != nil {
			t.Errorf("round %d: below an open directory: %v", round, err)
		}
	}
	if got := read(t, filepath.Join(m.Dir, "d/e/keep")); got != "012t" {
		t.Errorf("behind the mount: %q", got)
	}
	must(t, m.Client.Settle(t.Context(), fusetest.Workspace))
}
