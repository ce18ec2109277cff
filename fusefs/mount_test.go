package fusefs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/fusefs/fusetest"
)

func TestMain(m *testing.M) { fusetest.Main(m) }

// pair is a directory of its own on a mount, with the same one behind it.
type pair struct {
	m            *fusetest.Mount
	mount, below string
}

func (p pair) on(name string) string     { return filepath.Join(p.mount, name) }
func (p pair) behind(name string) string { return filepath.Join(p.below, name) }

// TestMount has what one mount with raw links and plain owners must do.
func TestMount(t *testing.T) {
	m := fusetest.New(t, fusetest.Options{AllowOther: true})
	for _, test := range []struct {
		name string
		run  func(*testing.T, pair)
	}{
		{"append from everywhere", testAppend},
		{"mmap", testMmap},
		{"unlink while open", testUnlinkOpen},
		{"flock", testFlock},
		{"posix locks", testPosixLocks},
		{"lock wait", testLockWait},
		{"xattr", testXattr},
		{"statfs", testStatfs},
		{"mode 0000", testModeZero},
		{"umask", testUmask},
		{"names", testNames},
		{"readdir while changing", testReaddirChanging},
		{"rename storm", testRenameStorm},
		{"remote change", testRemoteChange},
		{"same size and time", testSameSizeAndTime},
		{"remote rename and remove", testRemoteNames},
		{"hard links", testHardLinks},
		{"exclusive create", testExclusive},
		{"exchange", testExchange},
		{"devices and fifos", testSpecial},
		{"execute after close", testExecute},
		{"large file", testLarge},
		{"copy and holes", testCopy},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := strings.ReplaceAll(test.name, " ", "-")
			p := pair{m, filepath.Join(m.Path, dir), filepath.Join(m.Dir, dir)}
			must(t, os.Mkdir(p.mount, 0o755))
			test.run(t, p)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func testAppend(t *testing.T, p pair) {
	const writers, lines = 4, 50
	var wg sync.WaitGroup
	for i := range writers {
		path := p.on("log")
		if i%2 == 1 {
			path = p.behind("log")
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		must(t, err)
		wg.Go(func() {
			defer f.Close()
			for j := range lines {
				if _, err := fmt.Fprintf(f, "writer %d line %d\n", i, j); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	wg.Wait()
	got := strings.Split(strings.TrimSpace(read(t, p.on("log"))), "\n")
	if len(got) != writers*lines {
		t.Fatalf("got %d lines, want %d", len(got), writers*lines)
	}
	for i := range writers {
		for j := range lines {
			if want := fmt.Sprintf("writer %d line %d", i, j); !slices.Contains(got, want) {
				t.Errorf("line %q is missing or torn", want)
			}
		}
	}
}

func testMmap(t *testing.T, p pair) {
	const size = 3 * 4096
	must(t, os.WriteFile(p.on("map"), make([]byte, size), 0o644))
	f, err := os.OpenFile(p.on("map"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(mem)
	copy(mem[5000:], "through the map")
	must(t, unix.Msync(mem, unix.MS_SYNC))
	if got := read(t, p.behind("map"))[5000:5015]; got != "through the map" {
		t.Errorf("behind the mount: got %q", got)
	}
	// A change on the other side reaches the pages that are mapped.
	g, err := os.OpenFile(p.behind("map"), os.O_WRONLY, 0)
	must(t, err)
	defer g.Close()
	_, err = g.WriteAt([]byte("from the box"), 9000)
	must(t, err)
	fusetest.Eventually(t, 5*time.Second, "mapped page is renewed", func() bool {
		return string(mem[9000:9012]) == "from the box"
	})
}

func testUnlinkOpen(t *testing.T, p pair) {
	for _, side := range []string{p.on("f"), p.behind("f")} {
		write(t, p.on("f"), "still here")
		f, err := os.OpenFile(p.on("f"), os.O_RDWR, 0)
		must(t, err)
		must(t, os.Remove(side))
		fusetest.Eventually(t, 5*time.Second, "name is gone", func() bool {
			_, err := os.Lstat(p.on("f"))
			return errors.Is(err, fs.ErrNotExist)
		})
		b := make([]byte, 10)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != "still here" {
			t.Errorf("read of an unlinked file: %q, %v", b, err)
		}
		if _, err := f.WriteAt([]byte("STILL"), 0); err != nil {
			t.Errorf("write to an unlinked file: %v", err)
		}
		must(t, f.Close())
	}
}

func testFlock(t *testing.T, p pair) {
	write(t, p.on("f"), "")
	on, err := os.Open(p.on("f"))
	must(t, err)
	defer on.Close()
	behind, err := os.Open(p.behind("f"))
	must(t, err)
	defer behind.Close()
	must(t, unix.Flock(int(on.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	if err := unix.Flock(int(behind.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("lock taken on the mount, tried behind it: got %v, want EWOULDBLOCK", err)
	}
	must(t, on.Close())
	fusetest.Eventually(t, 5*time.Second, "close gives the lock back", func() bool {
		return unix.Flock(int(behind.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	})
	again, err := os.Open(p.on("f"))
	must(t, err)
	defer again.Close()
	if err := unix.Flock(int(again.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("lock taken behind the mount, tried on it: got %v, want EWOULDBLOCK", err)
	}
}

func testPosixLocks(t *testing.T, p pair) {
	write(t, p.on("f"), "0123456789")
	on, err := os.OpenFile(p.on("f"), os.O_RDWR, 0)
	must(t, err)
	defer on.Close()
	behind, err := os.OpenFile(p.behind("f"), os.O_RDWR, 0)
	must(t, err)
	defer behind.Close()
	lock := func(f *os.File, cmd int, typ int16, start, n int64) error {
		return unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: typ, Start: start, Len: n})
	}
	must(t, lock(on, unix.F_SETLK, unix.F_WRLCK, 2, 3))
	if err := lock(behind, unix.F_OFD_SETLK, unix.F_WRLCK, 4, 2); err != unix.EAGAIN {
		t.Errorf("overlapping lock behind the mount: got %v, want EAGAIN", err)
	}
	must(t, lock(behind, unix.F_OFD_SETLK, unix.F_WRLCK, 5, 5))
	held := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 10}
	must(t, unix.FcntlFlock(on.Fd(), unix.F_OFD_GETLK, &held))
	if held.Type == unix.F_UNLCK {
		t.Error("the lock behind the mount is not seen on it")
	}
	// POSIX locks go when the process closes any descriptor of the file.
	other, err := os.Open(p.on("f"))
	must(t, err)
	must(t, other.Close())
	if err := lock(behind, unix.F_OFD_SETLK, unix.F_WRLCK, 2, 3); err != nil {
		t.Errorf("lock after the holder closed the file: %v", err)
	}
}

func testLockWait(t *testing.T, p pair) {
	write(t, p.on("f"), "")
	behind, err := os.OpenFile(p.behind("f"), os.O_RDWR, 0)
	must(t, err)
	defer behind.Close()
	must(t, unix.Flock(int(behind.Fd()), unix.LOCK_EX))
	cmd := exec.Command("flock", p.on("f"), "echo", "got it")
	var out bytes.Buffer
	cmd.Stdout = &out
	must(t, cmd.Start())
	killed := exec.Command("flock", p.on("f"), "true")
	must(t, killed.Start())
	fusetest.Eventually(t, 5*time.Second, "both wait", func() bool {
		return waitsIn(cmd.Process.Pid, "fuse") && waitsIn(killed.Process.Pid, "fuse")
	})
	must(t, killed.Process.Signal(syscall.SIGTERM)) // interrupts the wait
	if err := killed.Wait(); err == nil {
		t.Error("the interrupted waiter got the lock")
	}
	must(t, unix.Flock(int(behind.Fd()), unix.LOCK_UN))
	must(t, cmd.Wait())
	if out.String() != "got it\n" {
		t.Errorf("waiter said %q", out.String())
	}
}

// waitsIn tells whether a process sleeps in a kernel function of that name, or,
// where proc does not tell, whether it sleeps.
func waitsIn(pid int, name string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stack", pid))
	if err == nil && len(b) > 0 {
		return bytes.Contains(b, []byte(name))
	}
	b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	return bytes.HasPrefix(b, []byte("73 ")) // flock on amd64
}

func testXattr(t *testing.T, p pair) {
	write(t, p.on("f"), "")
	must(t, unix.Setxattr(p.on("f"), "user.color", []byte("green"), 0))
	b := make([]byte, 16)
	n, err := unix.Getxattr(p.behind("f"), "user.color", b)
	if err != nil || string(b[:n]) != "green" {
		t.Errorf("behind the mount: %q, %v", b[:max(n, 0)], err)
	}
	if err := unix.Setxattr(p.on("f"), "user.color", []byte("red"), unix.XATTR_CREATE); err != unix.EEXIST {
		t.Errorf("XATTR_CREATE of an attribute there is: got %v, want EEXIST", err)
	}
	for name, want := range map[string]error{
		"trusted.x": unix.EOPNOTSUPP, "security.x": unix.EOPNOTSUPP,
	} {
		if err := unix.Setxattr(p.on("f"), name, []byte("v"), 0); err != want {
			t.Errorf("set %s: got %v, want %v", name, err, want)
		}
	}
	if _, err := unix.Getxattr(p.on("f"), "security.capability", b); err != unix.ENODATA {
		t.Errorf("get security.capability: got %v, want ENODATA", err)
	}
	n, err = unix.Listxattr(p.on("f"), b)
	if err != nil || string(b[:n]) != "user.color\x00" {
		t.Errorf("list: %q, %v", b[:max(n, 0)], err)
	}
	must(t, unix.Removexattr(p.on("f"), "user.color"))
	if _, err := unix.Getxattr(p.behind("f"), "user.color", b); err != unix.ENODATA {
		t.Errorf("removed: got %v, want ENODATA", err)
	}
}

func testStatfs(t *testing.T, p pair) {
	var on, behind unix.Statfs_t
	must(t, unix.Statfs(p.mount, &on))
	must(t, unix.Statfs(p.below, &behind))
	if on.Blocks != behind.Blocks || on.Namelen != behind.Namelen || on.Bsize != behind.Bsize {
		t.Errorf("got %d blocks of %d, names of %d; want %d, %d, %d",
			on.Blocks, on.Bsize, on.Namelen, behind.Blocks, behind.Bsize, behind.Namelen)
	}
}

// as runs a command as another user.
func as(uid uint32, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func testModeZero(t *testing.T, p pair) {
	write(t, p.on("f"), "secret")
	must(t, os.Chmod(p.on("f"), 0))
	st, err := os.Stat(p.on("f"))
	must(t, err)
	if st.Mode().Perm() != 0 {
		t.Errorf("mode is %v, want 0", st.Mode())
	}
	if err := as(65534, "cat", p.on("f")); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("another user reads a file of mode 0: %v", err)
	}
	if got := read(t, p.on("f")); got != "secret" {
		t.Errorf("root reads %q", got)
	}
}

func testUmask(t *testing.T, p pair) {
	out, err := exec.Command("sh", "-c", "cd "+p.mount+" && umask 027 && : >f && mkdir d && mkfifo p && stat -c %a f d p").CombinedOutput()
	if err != nil || string(out) != "640\n750\n640\n" {
		t.Errorf("modes under umask 027: %q, %v", out, err)
	}
}

func testNames(t *testing.T, p pair) {
	for _, name := range []string{"not utf-8 \xff\xfe", strings.Repeat("n", 255), "new\nline", " ", "\\", "…"} {
		write(t, p.on(name), name)
		if got := read(t, p.behind(name)); got != name {
			t.Errorf("%q behind the mount: %q", name, got)
		}
		must(t, os.Remove(p.behind(name)))
	}
	if err := os.WriteFile(p.on(strings.Repeat("n", 256)), nil, 0o644); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("256 bytes: got %v, want ENAMETOOLONG", err)
	}
}

func testReaddirChanging(t *testing.T, p pair) {
	const stable = 5000
	for i := range stable {
		must(t, os.WriteFile(p.behind(fmt.Sprintf("stable-%d", i)), nil, 0o644))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := p.on(fmt.Sprintf("moving-%d", i%50))
			_ = os.WriteFile(name, nil, 0o644)
			_ = os.Rename(name, p.behind("moved"))
			_ = os.Remove(p.behind("moved"))
		}
	})
	defer wg.Wait()
	defer close(stop)
	for round := range 3 {
		d, err := os.Open(p.mount)
		must(t, err)
		seen := map[string]int{}
		for {
			names, err := d.Readdirnames(100)
			for _, n := range names {
				seen[n]++
			}
			if err != nil {
				break
			}
		}
		must(t, d.Close())
		for i := range stable {
			if n := seen[fmt.Sprintf("stable-%d", i)]; n != 1 {
				t.Fatalf("round %d: stable-%d was listed %d times", round, i, n)
			}
		}
	}
}

// testRenameStorm reads two files that are replaced all the time by temporary
// file and rename on the other side, where inode numbers are used again at once.
func testRenameStorm(t *testing.T, p pair) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		text := []byte(strings.Repeat(name, 5000))
		save := func() error {
			if err := os.WriteFile(p.behind("."+name), text, 0o644); err != nil {
				return err
			}
			return os.Rename(p.behind("."+name), p.behind(name))
		}
		must(t, save())
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := save(); err != nil {
					t.Errorf("save %s: %v", name, err)
					return
				}
			}
		})
	}
	for i := range 360 {
		name := []string{"a", "b"}[i%2]
		b, err := os.ReadFile(p.on(name))
		if err != nil {
			t.Fatalf("read %d of %s: %v", i, name, err)
		}
		if want := strings.Repeat(name, 5000); string(b) != want {
			t.Fatalf("read %d of %s: %d bytes, beginning with %.10q", i, name, len(b), b)
		}
	}
	close(stop)
	wg.Wait()
}

func testRemoteChange(t *testing.T, p pair) {
	write(t, p.on("f"), "0")
	var worst time.Duration
	for i := 1; i <= 50; i++ {
		want := fmt.Sprint(i) + strings.Repeat("+", i)
		write(t, p.behind("f"), want)
		begin := time.Now()
		fusetest.Eventually(t, 2*time.Second, "change is seen", func() bool {
			st, err := os.Stat(p.on("f"))
			return err == nil && st.Size() == int64(len(want)) && read(t, p.on("f")) == want
		})
		worst = max(worst, time.Since(begin))
	}
	if worst > 1500*time.Millisecond {
		t.Errorf("the slowest change took %v", worst)
	}
	t.Logf("slowest of 50: %v", worst)
}

// testSameSizeAndTime: neither size nor mtime tell that the content changed.
func testSameSizeAndTime(t *testing.T, p pair) {
	when := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 20 {
		want := fmt.Sprintf("content %02d", i)
		write(t, p.behind("f"), want)
		must(t, os.Chtimes(p.behind("f"), when, when))
		fusetest.Eventually(t, 3*time.Second, "new content", func() bool { return read(t, p.on("f")) == want })
	}
}

func testRemoteNames(t *testing.T, p pair) {
	write(t, p.on("f"), "x")
	must(t, os.MkdirAll(p.on("d/e"), 0o755))
	must(t, os.Rename(p.behind("f"), p.behind("d/g")))
	must(t, os.Rename(p.behind("d"), p.behind("dd")))
	fusetest.Eventually(t, 3*time.Second, "moves are seen", func() bool {
		_, err1 := os.Stat(p.on("f"))
		_, err2 := os.Stat(p.on("d"))
		return errors.Is(err1, fs.ErrNotExist) && errors.Is(err2, fs.ErrNotExist)
	})
	if got := read(t, p.on("dd/g")); got != "x" {
		t.Errorf("moved file: %q", got)
	}
	write(t, p.behind("dd/e/new"), "n")
	if got := read(t, p.on("dd/e/new")); got != "n" { // absence is never cached
		t.Errorf("new file: %q", got)
	}
}

func testHardLinks(t *testing.T, p pair) {
	write(t, p.on("a"), "1")
	must(t, os.Link(p.on("a"), p.on("b")))
	must(t, os.Link(p.behind("a"), p.behind("c")))
	var sts [3]unix.Stat_t
	for i, name := range []string{"a", "b", "c"} {
		must(t, unix.Stat(p.on(name), &sts[i]))
	}
	if sts[0].Ino != sts[1].Ino || sts[0].Ino != sts[2].Ino {
		t.Errorf("inode numbers %d, %d, %d", sts[0].Ino, sts[1].Ino, sts[2].Ino)
	}
	var below unix.Stat_t
	must(t, unix.Stat(p.behind("a"), &below))
	if below.Ino != sts[0].Ino {
		t.Errorf("inode number %d, the server's is %d", sts[0].Ino, below.Ino)
	}
	must(t, os.Remove(p.on("a")))
	write(t, p.on("b"), "2")
	if got := read(t, p.on("c")); got != "2" {
		t.Errorf("through the other name: %q", got)
	}
}

func testExclusive(t *testing.T, p pair) {
	for round := range 20 {
		var wg sync.WaitGroup
		won := make(chan int, 8)
		for i := range cap(won) {
			path := p.on
			if i%2 == 1 {
				path = p.behind
			}
			wg.Go(func() {
				f, err := os.OpenFile(path(fmt.Sprintf("lock%d", round)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
				if err == nil {
					won <- i
					_ = f.Close()
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("round %d: %d creators won", round, len(won))
		}
	}
}

func testExchange(t *testing.T, p pair) {
	write(t, p.on("a"), "A")
	write(t, p.on("b"), "B")
	must(t, unix.Renameat2(unix.AT_FDCWD, p.on("a"), unix.AT_FDCWD, p.on("b"), unix.RENAME_EXCHANGE))
	if a, b := read(t, p.on("a")), read(t, p.on("b")); a != "B" || b != "A" {
		t.Errorf("after exchange: %q, %q", a, b)
	}
	err := unix.Renameat2(unix.AT_FDCWD, p.on("a"), unix.AT_FDCWD, p.on("b"), unix.RENAME_NOREPLACE)
	if err != unix.EEXIST {
		t.Errorf("noreplace: got %v, want EEXIST", err)
	}
}

func testSpecial(t *testing.T, p pair) {
	if err := unix.Mknod(p.on("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != unix.EPERM {
		t.Errorf("device: got %v, want EPERM", err)
	}
	must(t, unix.Mkfifo(p.on("fifo"), 0o644))
	done := make(chan string, 1)
	go func() {
		b, _ := os.ReadFile(p.on("fifo"))
		done <- string(b)
	}()
	write(t, p.on("fifo"), "through")
	if got := <-done; got != "through" {
		t.Errorf("fifo: %q", got)
	}
}

// testExecute: once settled, a file just written is not open for writing at the
// server any more.
func testExecute(t *testing.T, p pair) {
	for i := range 20 {
		name := fmt.Sprintf("prog%d", i)
		must(t, os.WriteFile(p.on(name), []byte("#!/bin/sh\necho ran\n"), 0o755))
		must(t, p.m.Client.Settle(t.Context(), fusetest.Workspace))
		out, err := exec.Command(p.behind(name)).CombinedOutput()
		if err != nil || string(out) != "ran\n" {
			t.Fatalf("round %d: %q, %v", i, out, err)
		}
	}
}

func testLarge(t *testing.T, p pair) {
	data := make([]byte, 9<<20+123)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	must(t, os.WriteFile(p.on("f"), data, 0o644))
	for _, path := range []string{p.behind("f"), p.on("f")} {
		if got := read(t, path); !bytes.Equal([]byte(got), data) {
			t.Errorf("%s differs", path)
		}
	}
	must(t, os.WriteFile(p.behind("g"), data, 0o644))
	if got := read(t, p.on("g")); !bytes.Equal([]byte(got), data) {
		t.Error("a file from the other side differs")
	}
}

func testCopy(t *testing.T, p pair) {
	f, err := os.Create(p.on("f"))
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("tail"), 1<<20)
	must(t, err)
	g, err := os.Create(p.on("g"))
	must(t, err)
	defer g.Close()
	off := int64(1 << 20)
	n, err := unix.CopyFileRange(int(f.Fd()), &off, int(g.Fd()), nil, 4, 0)
	if err != nil || n != 4 || read(t, p.behind("g")) != "tail" {
		t.Errorf("copied %d: %v", n, err)
	}
	hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	if err != nil || hole == 0 || hole > 1<<20 {
		t.Errorf("first data at %d, %v", hole, err)
	}
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20, 4096))
	if got := read(t, p.on("f"))[1<<20:]; got != "\x00\x00\x00\x00" {
		t.Errorf("punched: %q", got)
	}
}
