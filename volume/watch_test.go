package volume

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// watched is a served directory and a client that records events.
func watched(t *testing.T, o ServerOptions) (*rig, *user, *recorder) {
	t.Helper()
	r := newRig(t, o)
	rec := &recorder{}
	return r, r.open(Options{OnEvents: rec.on}), rec
}

func TestEventsOfOthers(t *testing.T) {
	r, u, rec := watched(t, ServerOptions{})
	os.MkdirAll(r.path("d/e"), 0o755)
	r.write("d/f", "1")
	r.write("d/gone", "1")
	d := u.walk(u.root(), "d")
	f, e := u.walk(d.GetHandle(), "f"), u.walk(d.GetHandle(), "e")
	gone := u.walk(d.GetHandle(), "gone")
	r.write("d/new", "")
	eventually(t, "entry event of a new name", func() bool { return rec.entry(d.GetHandle(), "new", false) })
	eventually(t, "its directory changed", func() bool { return rec.object(d) })
	os.Remove(r.path("d/gone"))
	eventually(t, "entry event of a removed name", func() bool { return rec.entry(d.GetHandle(), "gone", true) })
	eventually(t, "the removed file changed", func() bool { return rec.object(gone) })
	r.write("d/f", "22")
	eventually(t, "changed content", func() bool { return rec.object(f) })
	r.write("d/e/x", "")
	eventually(t, "a directory that was only looked up", func() bool { return rec.object(e) })
	os.Rename(r.path("d/f"), r.path("d/f2"))
	eventually(t, "the old name", func() bool { return rec.entry(d.GetHandle(), "f", true) })
	eventually(t, "the new name", func() bool { return rec.entry(d.GetHandle(), "f2", false) })
	if rec.losses() != 0 {
		t.Errorf("%d times lost", rec.losses())
	}
}

// TestEventsOfAnotherSession are not told to the one that caused them, until the
// watch repeats them.
func TestEventsOfAnotherSession(t *testing.T) {
	r, a, rec := watched(t, ServerOptions{EventDelay: time.Hour}) // no help of the watch
	b := r.open(Options{})
	r.write("f", "1")
	f := a.walk(a.root(), "f")
	o := b.do(&volumev1.OpenAt{Parent: b.root(), Name: []byte("f"), Flags: unix.O_RDWR}).GetOpen()
	b.do(&volumev1.Write{Open: o.GetOpen(), Data: []byte("22")})
	eventually(t, "the other session's write", func() bool { return rec.object(f) })
}

// TestEventBeforeReply: a reply is never older than the events before it.
func TestEventBeforeReply(t *testing.T) {
	r, u, rec := watched(t, ServerOptions{})
	r.write("f", "")
	u.walk(u.root(), "f")
	for i := range 50 {
		r.write("f", string(make([]byte, i)))
		reply := u.do(&volumev1.Walk{Handle: u.root(), Names: [][]byte{[]byte("f")}})
		if got := rec.last(); got < reply.GetEvent() {
			t.Fatalf("a reply at event %d came before it, the last was %d", reply.GetEvent(), got)
		}
	}
}

func TestBarrier(t *testing.T) {
	const delay = 300 * time.Millisecond
	r, u, rec := watched(t, ServerOptions{EventDelay: delay})
	r.write("f", "1")
	f := u.walk(u.root(), "f")
	u.walk(u.root(), "f")
	r.write("f", "22")
	os.Remove(r.path("f"))
	if rec.entry(u.root(), "f", true) {
		t.Fatal("the event was not held back")
	}
	begun := time.Now()
	n := r.barrier()
	if d := time.Since(begun); d < delay/2 {
		t.Errorf("the barrier took %v, less than events do", d)
	}
	eventually(t, "the client is at the barrier's event", func() bool { return rec.last() >= n })
	if !rec.entry(u.root(), "f", true) || !rec.object(f) {
		t.Error("the barrier did not bring the events")
	}
	if got := u.do(&volumev1.Barrier{}).GetBarrier().GetEvent(); got < n {
		t.Errorf("event %d after %d", got, n)
	}
}

// TestBarrierSeesWhatInotifyDoesNot: a write through another hard link, and one
// through a mapping.
func TestBarrierSeesWhatInotifyDoesNot(t *testing.T) {
	r, u, rec := watched(t, ServerOptions{})
	outside := filepath.Join(filepath.Dir(r.dir), "outside")
	os.WriteFile(outside, []byte("1234"), 0o644)
	if err := os.Link(outside, r.path("f")); err != nil {
		t.Fatal(err)
	}
	r.write("mapped", "1234")
	f, m := u.walk(u.root(), "f"), u.walk(u.root(), "mapped")

	os.WriteFile(outside, []byte("changed"), 0o644)
	file, err := os.OpenFile(r.path("mapped"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mem, err := unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	mem[0] = 'x'
	unix.Munmap(mem)

	n := r.barrier()
	eventually(t, "the client is at the barrier's event", func() bool { return rec.last() >= n })
	if !rec.object(f) || !rec.object(m) {
		t.Errorf("by another link: %v, mapped: %v", rec.object(f), rec.object(m))
	}
}

func TestWatchLimit(t *testing.T) {
	r, u, rec := watched(t, ServerOptions{})
	v := r.server.volumes["v"]
	v.watch.mu.Lock()
	v.watch.limit = 3
	v.watch.mu.Unlock()
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		os.Mkdir(r.path(n), 0o755)
		u.walk(u.root(), n)
	}
	n := r.barrier()
	eventually(t, "the client is at the barrier's event", func() bool { return rec.last() >= n })
	if rec.losses() == 0 {
		t.Error("directories were not watched, and nothing was told as lost")
	}
	v.watch.mu.Lock()
	defer v.watch.mu.Unlock()
	if len(v.watch.watches) > 3 {
		t.Errorf("%d watches", len(v.watch.watches))
	}
}

func TestFeedKeepsALimitedPast(t *testing.T) {
	f := newFeed(10)
	o := &object{handle: newHandle(1)}
	s := &session{}
	if f.frame(10, s) != nil {
		t.Error("an empty feed has a frame")
	}
	f.append(event{object: o}, event{parent: o, name: "n", only: &session{}}, event{object: o, except: s})
	got := f.frame(10, s)
	if got.GetNumber() != 13 || len(got.GetEvents()) != 1 || got.GetLost() {
		t.Errorf("got %v", got)
	}
	for range feedSize {
		f.append(event{object: o})
	}
	if got := f.frame(10, s); !got.GetLost() || got.GetNumber() != 13+feedSize {
		t.Errorf("got lost %v at %d", got.GetLost(), got.GetNumber())
	}
	got = f.frame(13, s)
	if got.GetLost() || len(got.GetEvents()) != maxEventsPerFrame || got.GetNumber() != 13+maxEventsPerFrame {
		t.Errorf("got lost %v, %d events, number %d", got.GetLost(), len(got.GetEvents()), got.GetNumber())
	}
	f.append(event{lost: true}, event{object: o})
	n := f.number()
	if got := f.frame(n-2, s); !got.GetLost() || got.GetNumber() != n-1 {
		t.Errorf("got %v", got)
	}
	select {
	case <-f.after(n - 1):
	default:
		t.Error("no word of an event that is there")
	}
}

// TestSpaceOfDeletedFiles: nothing of ours keeps a deleted file's space, by file
// handle or by descriptor.
func TestSpaceOfDeletedFiles(t *testing.T) {
	for _, byHandle := range []bool{true, false} {
		r, u, rec := watched(t, ServerOptions{})
		v := r.server.volumes["v"]
		v.byHandle = v.byHandle && byHandle // before the first object
		r.write("f", "content")
		f := u.walk(u.root(), "f")
		var before unix.Stat_t
		unix.Stat(r.path("f"), &before)
		os.Remove(r.path("f"))
		eventually(t, "event of the removal", func() bool { return rec.entry(u.root(), "f", true) })
		r.barrier()
		for _, fd := range openFDs(t) {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Ino == before.Ino && st.Dev == before.Dev && st.Nlink == 0 {
				t.Errorf("by handle %v: descriptor %d keeps the deleted file", byHandle, fd)
			}
		}
		u.fails(&volumev1.GetAttr{Handle: f.GetHandle()}, unix.ESTALE)
	}
}

func TestCookieDirsOfTheDeadAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	alive, err := newCookieDir()
	if err != nil {
		t.Fatal(err)
	}
	defer alive.remove()
	dead, err := newCookieDir()
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.drop() // as a kill does
	sweepCookieDirs()
	if _, err := os.Stat(alive.path); err != nil {
		t.Errorf("of a living process: %v", err)
	}
	if _, err := os.Stat(dead.path); !os.IsNotExist(err) {
		t.Errorf("of a dead process: %v", err)
	}
}

func openFDs(t *testing.T) []int {
	t.Helper()
	var out []int
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		n := 0
		for _, c := range e.Name() {
			n = 10*n + int(c-'0')
		}
		out = append(out, n)
	}
	return out
}

// TestInodeNumberIsNotIdentity makes files until one has a deleted one's number.
func TestInodeNumberIsNotIdentity(t *testing.T) {
	r, u := oneUser(t)
	for range 200 {
		r.write("f", "old")
		f := u.walk(u.root(), "f")
		os.Remove(r.path("f"))
		r.write("f", "new")
		g := u.walk(u.root(), "f")
		if bytes.Equal(f.GetHandle(), g.GetHandle()) {
			t.Fatal("a new file has the handle of a deleted one")
		}
		os.Remove(r.path("f"))
		if f.GetIdentity().GetIno() == g.GetIdentity().GetIno() {
			return
		}
	}
	t.Skip("the file system did not use an inode number again")
}
