package volume

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// oneUser is a served empty directory and a client of it.
func oneUser(t *testing.T) (*rig, *user) {
	t.Helper()
	r := newRig(t, ServerOptions{})
	return r, r.open(Options{})
}

func TestWalk(t *testing.T) {
	r, u := oneUser(t)
	os.MkdirAll(r.path("a/b"), 0o755)
	r.write("a/b/f", "x")
	os.Symlink("b", r.path("a/l"))

	tests := []struct {
		name  string
		path  []string
		steps int
		errno syscall.Errno
	}{
		{"all there", []string{"a", "b", "f"}, 3, 0},
		{"missing in the middle", []string{"a", "no", "f"}, 1, syscall.ENOENT},
		{"below a file", []string{"a", "b", "f", "x"}, 3, syscall.ENOTDIR},
		{"a link is not followed", []string{"a", "l", "f"}, 2, syscall.ELOOP},
		{"a link at the end", []string{"a", "l"}, 2, 0},
		{"dot", []string{"."}, 0, syscall.EINVAL},
		{"out of it", []string{"a", ".."}, 1, syscall.EINVAL},
		{"a slash", []string{"a/b"}, 0, syscall.EINVAL},
		{"a NUL", []string{"a\x00"}, 0, syscall.EINVAL},
		{"nothing", []string{""}, 0, syscall.EINVAL},
		{"too long", []string{string(bytes.Repeat([]byte("n"), 256))}, 0, syscall.ENAMETOOLONG},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := &volumev1.Walk{Handle: u.root()}
			for _, n := range tt.path {
				w.Names = append(w.Names, []byte(n))
			}
			got := u.do(w).GetWalk()
			if len(got.GetSteps()) != tt.steps || syscall.Errno(got.GetErrno()) != tt.errno {
				t.Errorf("walk %q: got %d steps, %v, want %d, %v", tt.path,
					len(got.GetSteps()), syscall.Errno(got.GetErrno()), tt.steps, tt.errno)
			}
		})
	}
}

func TestSameObjectSameHandle(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "x")
	os.Link(r.path("f"), r.path("g"))
	f, g := u.walk(u.root(), "f"), u.walk(u.root(), "g")
	if !bytes.Equal(f.GetHandle(), g.GetHandle()) {
		t.Errorf("two links to one file have handles %x and %x", f.GetHandle(), g.GetHandle())
	}
	if f.GetAttr().GetNlink() != 2 {
		t.Errorf("got nlink %d, want 2", f.GetAttr().GetNlink())
	}
}

func TestForgetGivesReferencesBack(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "x")
	a := u.walk(u.root(), "f")
	u.walk(u.root(), "f")
	one := []*volumev1.ForgetOne{{Handle: a.GetHandle(), Count: 1}}
	u.do(&volumev1.Forget{Handles: one})
	b := u.do(&volumev1.GetAttr{Handle: a.GetHandle()}).GetObject() // counts too
	if !proto.Equal(a.GetIdentity(), b.GetIdentity()) {
		t.Errorf("got %v, want %v", b.GetIdentity(), a.GetIdentity())
	}
	u.do(&volumev1.Forget{Handles: []*volumev1.ForgetOne{{Handle: a.GetHandle(), Count: 2}}})
	u.fails(&volumev1.GetAttr{Handle: a.GetHandle()}, syscall.ESTALE)
}

func TestForgedHandles(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "x")
	h := bytes.Clone(u.walk(u.root(), "f").GetHandle())
	h[15] ^= 1
	for _, forged := range [][]byte{nil, {1}, h, bytes.Repeat([]byte{0}, 16), bytes.Repeat([]byte{9}, 999)} {
		u.fails(&volumev1.GetAttr{Handle: forged}, syscall.ESTALE)
		u.fails(&volumev1.Walk{Handle: forged, Names: [][]byte{[]byte("f")}}, syscall.ESTALE)
	}
	// Another session's handle is not this one's, until it finds the object itself.
	other := r.open(Options{})
	other.fails(&volumev1.GetAttr{Handle: u.walk(u.root(), "f").GetHandle()}, syscall.ESTALE)
}

func TestReplacedObjectIsStale(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "old")
	f := u.walk(u.root(), "f")
	r.write("new", "new")
	if err := os.Rename(r.path("new"), r.path("f")); err != nil {
		t.Fatal(err)
	}
	u.fails(&volumev1.GetAttr{Handle: f.GetHandle()}, syscall.ESTALE)
	u.fails(&volumev1.OpenAt{Parent: u.root(), Name: []byte("f"), Handle: f.GetHandle()}, syscall.ESTALE)
	again := u.walk(u.root(), "f")
	open := u.do(&volumev1.OpenAt{Parent: u.root(), Name: []byte("f"), Handle: again.GetHandle()}).GetOpen()
	if got := u.read(open.GetOpen()); got != "new" {
		t.Errorf("got %q, want %q", got, "new")
	}
}

func TestDeletedButOpen(t *testing.T) {
	r, u := oneUser(t)
	o := u.create("f")
	u.do(&volumev1.Write{Open: o.GetOpen(), Data: []byte("still here")})
	ch := u.do(&volumev1.Unlink{Parent: u.root(), Name: []byte("f")}).GetChange()
	if got := ch.GetVictim(); !bytes.Equal(got.GetHandle(), o.GetObject().GetHandle()) || got.GetAttr().GetNlink() != 0 {
		t.Errorf("victim is %v, want the file without links", got)
	}
	if got := u.read(o.GetOpen()); got != "still here" {
		t.Errorf("got %q", got)
	}
	if got := u.do(&volumev1.GetAttr{Handle: o.GetObject().GetHandle()}).GetObject().GetAttr(); got.GetNlink() != 0 || got.GetSize() != 10 {
		t.Errorf("got %v", got)
	}
	size := uint64(5)
	u.do(&volumev1.SetAttr{Handle: o.GetObject().GetHandle(), Size: &size})
	// By handle it can be opened once more, as through /proc/self/fd.
	second := u.do(&volumev1.OpenAt{Handle: o.GetObject().GetHandle()}).GetOpen()
	u.do(&volumev1.Release{Opens: []uint64{o.GetOpen()}})
	if got := u.read(second.GetOpen()); got != "still" {
		t.Errorf("got %q", got)
	}
	u.do(&volumev1.Release{Opens: []uint64{second.GetOpen()}})
	u.fails(&volumev1.GetAttr{Handle: o.GetObject().GetHandle()}, syscall.ESTALE)
	u.fails(&volumev1.Read{Open: o.GetOpen(), Length: 1}, syscall.EBADF)
	if _, err := os.Stat(r.path("f")); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

func TestOpenAt(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "content")
	os.Mkdir(r.path("d"), 0o755)
	os.Symlink("f", r.path("l"))
	if err := unix.Mkfifo(r.path("p"), 0o644); err != nil {
		t.Fatal(err)
	}
	open := func(name string, flags uint32) *volumev1.OpenAt {
		return &volumev1.OpenAt{Parent: u.root(), Name: []byte(name), Flags: flags, Mode: 0o666}
	}
	u.fails(open("no", 0), syscall.ENOENT)
	u.fails(open("f", wireCreate|wireExcl), syscall.EEXIST)
	u.fails(open("l", 0), syscall.ELOOP)
	u.fails(open("l", wireCreate), syscall.ELOOP)
	u.fails(open("l", wireCreate|wireExcl), syscall.EEXIST)
	u.fails(open("p", syscall.O_RDWR), syscall.ENXIO)
	u.fails(open("d", syscall.O_RDWR), syscall.EISDIR)
	u.fails(open("d", wireCreate), syscall.EISDIR)
	u.fails(open("f", wireDirectory), syscall.ENOTDIR)
	u.fails(open("f", 3), syscall.EINVAL)
	u.fails(open("../v/f", 0), syscall.EINVAL)
	if o := u.do(open("d", wireDirectory)).GetOpen(); o.GetOpen() == 0 || o.GetCreated() {
		t.Errorf("open of a directory: got %v", o)
	}
	if o := u.do(open("f", syscall.O_WRONLY|wireTrunc)).GetOpen(); o.GetObject().GetAttr().GetSize() != 0 {
		t.Errorf("O_TRUNC left %d bytes", o.GetObject().GetAttr().GetSize())
	}
	o := u.do(open("new", syscall.O_RDWR|wireCreate)).GetOpen()
	if !o.GetCreated() || o.GetParent() == nil || o.GetObject().GetAttr().GetMode() != syscall.S_IFREG|0o644 {
		t.Errorf("create: got %v", o)
	}
	temp := u.do(&volumev1.OpenAt{Parent: u.root(), Tmpfile: true, Flags: syscall.O_RDWR, Mode: 0o600}).GetOpen()
	u.do(&volumev1.Write{Open: temp.GetOpen(), Data: []byte("t")})
	u.do(&volumev1.Link{Handle: temp.GetObject().GetHandle(), Parent: u.root(), Name: []byte("linked")})
	if got, err := os.ReadFile(r.path("linked")); err != nil || string(got) != "t" {
		t.Errorf("linked temporary file: got %q, %v", got, err)
	}
}

func TestReadWrite(t *testing.T) {
	r, u := oneUser(t)
	o := u.create("f")
	w := u.do(&volumev1.Write{Open: o.GetOpen(), Offset: 3, Data: []byte("abc")}).GetWrite()
	if w.GetCount() != 3 || w.GetOffset() != 3 || w.GetObject().GetAttr().GetSize() != 6 {
		t.Errorf("got %v", w)
	}
	r.write("other", "")
	if err := appendFile(r.path("f"), "box"); err != nil {
		t.Fatal(err)
	}
	w = u.do(&volumev1.Write{Open: o.GetOpen(), Offset: 1, Data: []byte("end"), Append: true}).GetWrite()
	if w.GetOffset() != 9 {
		t.Errorf("append at %d, want 9", w.GetOffset())
	}
	u.do(&volumev1.Write{Open: o.GetOpen(), Offset: 0, Data: []byte("new"), Sync: true})
	got := u.do(&volumev1.Read{Open: o.GetOpen(), Length: 100}).GetRead()
	if string(got.GetData()) != "newabcboxend" || !got.GetEof() {
		t.Errorf("got %q, eof %v", got.GetData(), got.GetEof())
	}
	if got := u.do(&volumev1.Read{Open: o.GetOpen(), Offset: 3, Length: 3}).GetRead(); string(got.GetData()) != "abc" || got.GetEof() {
		t.Errorf("got %q, eof %v", got.GetData(), got.GetEof())
	}
	u.fails(&volumev1.Read{Open: o.GetOpen(), Offset: 1 << 63, Length: 1}, syscall.EINVAL)
	u.fails(&volumev1.Write{Open: o.GetOpen(), Offset: 1<<63 - 1, Data: []byte("x")}, syscall.EINVAL)
	for _, kind := range []volumev1.CommitKind{1, 2, 3, 4} {
		u.do(&volumev1.Commit{Open: o.GetOpen(), Kind: kind})
	}
	u.fails(&volumev1.Commit{Open: o.GetOpen()}, syscall.EINVAL)
	ro := u.do(&volumev1.OpenAt{Parent: u.root(), Name: []byte("f")}).GetOpen()
	u.fails(&volumev1.Write{Open: ro.GetOpen(), Data: []byte("x")}, syscall.EBADF)
}

func appendFile(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(s)
	return err
}

// TestAppendsDoNotOverlap has two sessions and the machine append at once; each
// answer tells the true place.
func TestAppendsDoNotOverlap(t *testing.T) {
	r, a := oneUser(t)
	b := r.open(Options{})
	o := a.create("f")
	p := b.do(&volumev1.OpenAt{Parent: b.root(), Name: []byte("f"), Flags: syscall.O_RDWR}).GetOpen()
	var wg sync.WaitGroup
	var mu sync.Mutex
	at := map[uint64]string{}
	for i := range 300 {
		wg.Go(func() {
			s := fmt.Sprintf("%04d\n", i)
			switch i % 3 {
			case 0:
				appendFile(r.path("f"), s)
				return
			case 1:
				w := a.do(&volumev1.Write{Open: o.GetOpen(), Data: []byte(s), Append: true}).GetWrite()
				mu.Lock()
				at[w.GetOffset()] = s
				mu.Unlock()
			default:
				w := b.do(&volumev1.Write{Open: p.GetOpen(), Data: []byte(s), Append: true}).GetWrite()
				mu.Lock()
				at[w.GetOffset()] = s
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	content, err := os.ReadFile(r.path("f"))
	if err != nil || len(content) != 300*5 {
		t.Fatalf("got %d bytes, %v, want 1500", len(content), err)
	}
	for off, s := range at {
		if got := string(content[off : off+5]); got != s {
			t.Errorf("at %d: got %q, want %q", off, got, s)
		}
	}
}

func TestSetAttr(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "12345")
	os.Symlink("f", r.path("l"))
	f, l := u.walk(u.root(), "f"), u.walk(u.root(), "l")
	mode, size, id := uint32(0o4711), uint64(2), uint32(321)
	at := &volumev1.Time{Sec: 111, Nsec: 5}
	a := u.do(&volumev1.SetAttr{Handle: f.GetHandle(), Mode: &mode, Size: &size, Mtime: at}).GetObject().GetAttr()
	if a.GetMode()&0o7777 != mode || a.GetSize() != 2 || !proto.Equal(a.GetMtime(), at) {
		t.Errorf("got %v", a)
	}
	if proto.Equal(a.GetAtime(), at) {
		t.Error("atime was set too")
	}
	a = u.do(&volumev1.SetAttr{Handle: f.GetHandle(), MtimeNow: true, Atime: at}).GetObject().GetAttr()
	if time.Since(time.Unix(a.GetMtime().GetSec(), 0)) > time.Minute || !proto.Equal(a.GetAtime(), at) {
		t.Errorf("got %v", a)
	}
	if os.Geteuid() == 0 {
		a = u.do(&volumev1.SetAttr{Handle: l.GetHandle(), Uid: &id}).GetObject().GetAttr()
		if a.GetUid() != id || a.GetMode()&unix.S_IFMT != unix.S_IFLNK {
			t.Errorf("chown of a link: got %v", a)
		}
	}
	a = u.do(&volumev1.SetAttr{Handle: l.GetHandle(), Mtime: at}).GetObject().GetAttr()
	if !proto.Equal(a.GetMtime(), at) {
		t.Errorf("utimens of a link: got %v", a)
	}
	u.fails(&volumev1.SetAttr{Handle: l.GetHandle(), Mode: &mode}, syscall.EOPNOTSUPP)
	u.fails(&volumev1.SetAttr{Handle: l.GetHandle(), Size: &size}, syscall.EINVAL)
	u.fails(&volumev1.SetAttr{Handle: u.root(), Size: &size}, syscall.EISDIR)

	// Set-id bits go with a write that asks for it.
	o := u.do(&volumev1.OpenAt{Handle: f.GetHandle(), Flags: syscall.O_RDWR}).GetOpen()
	u.do(&volumev1.SetAttr{Handle: f.GetHandle(), Mode: &mode})
	w := u.do(&volumev1.Write{Open: o.GetOpen(), Data: []byte("x"), KillPriv: true}).GetWrite()
	if got := w.GetObject().GetAttr().GetMode() & 0o7777; got != 0o711 {
		t.Errorf("after a write: got mode %o, want 711", got)
	}
	// An open file can be cut though its mode forbids it by now.
	none := uint32(0)
	u.do(&volumev1.SetAttr{Handle: f.GetHandle(), Mode: &none})
	u.do(&volumev1.SetAttr{Open: o.GetOpen(), Size: &size})
}

func TestNames(t *testing.T) {
	r, u := oneUser(t)
	os.MkdirAll(r.path("d"), 0o755)
	r.write("a", "a")
	r.write("b", "b")
	d, a, b := u.walk(u.root(), "d"), u.walk(u.root(), "a"), u.walk(u.root(), "b")
	root := u.root()
	name := func(s string) []byte { return []byte(s) }

	ch := u.do(&volumev1.Rename{Parent: root, Name: name("a"), NewParent: d.GetHandle(), NewName: name("a2")}).GetChange()
	if !bytes.Equal(ch.GetObject().GetHandle(), a.GetHandle()) || ch.GetNewParent() == nil || ch.GetVictim() != nil {
		t.Errorf("rename: got %v", ch)
	}
	ch = u.do(&volumev1.Rename{Parent: root, Name: name("b"), NewParent: d.GetHandle(), NewName: name("a2")}).GetChange()
	if !bytes.Equal(ch.GetVictim().GetHandle(), a.GetHandle()) || !bytes.Equal(ch.GetObject().GetHandle(), b.GetHandle()) {
		t.Errorf("rename over: got %v", ch)
	}
	r.write("c", "c")
	u.fails(&volumev1.Rename{Parent: root, Name: name("c"), NewParent: d.GetHandle(), NewName: name("a2"), Flags: unix.RENAME_NOREPLACE}, syscall.EEXIST)
	u.fails(&volumev1.Rename{Parent: root, Name: name("c"), NewParent: root, NewName: name("w"), Flags: unix.RENAME_WHITEOUT}, syscall.EINVAL)
	u.do(&volumev1.Rename{Parent: root, Name: name("c"), NewParent: d.GetHandle(), NewName: name("a2"), Flags: unix.RENAME_EXCHANGE})
	if got, _ := os.ReadFile(r.path("c")); string(got) != "b" {
		t.Errorf("exchange: got %q", got)
	}
	u.fails(&volumev1.Rename{Parent: root, Name: name("d"), NewParent: d.GetHandle(), NewName: name("x")}, syscall.EINVAL)

	ch = u.do(&volumev1.Link{Handle: b.GetHandle(), Parent: d.GetHandle(), Name: name("hard")}).GetChange()
	if ch.GetObject().GetAttr().GetNlink() != 2 {
		t.Errorf("link: got %v", ch)
	}
	u.fails(&volumev1.Link{Handle: d.GetHandle(), Parent: root, Name: name("d2")}, syscall.EPERM)
	u.fails(&volumev1.Link{Handle: b.GetHandle(), Parent: d.GetHandle(), Name: name("hard")}, syscall.EEXIST)

	odd := "\xff\xfe not UTF-8 \n"
	ch = u.do(&volumev1.Symlink{Parent: root, Name: name(odd), Target: name("/../" + odd)}).GetChange()
	if got := u.do(&volumev1.ReadLink{Handle: ch.GetObject().GetHandle()}).GetData().GetData(); string(got) != "/../"+odd {
		t.Errorf("readlink: got %q", got)
	}
	u.fails(&volumev1.ReadLink{Handle: b.GetHandle()}, syscall.EINVAL)

	u.fails(&volumev1.Unlink{Parent: root, Name: name("d"), Directory: true}, syscall.ENOTEMPTY)
	u.fails(&volumev1.Unlink{Parent: root, Name: name("d")}, syscall.EISDIR)
	u.fails(&volumev1.Unlink{Parent: root, Name: name("c"), Directory: true}, syscall.ENOTDIR)
	u.fails(&volumev1.Unlink{Parent: root, Name: name("no")}, syscall.ENOENT)
	ch = u.do(&volumev1.Unlink{Parent: root, Name: name("c")}).GetChange()
	if ch.GetVictim().GetAttr().GetNlink() != 1 {
		t.Errorf("unlink of one of two links: got %v", ch)
	}
}

func TestReadDir(t *testing.T) {
	r, u := oneUser(t)
	want := map[string]bool{}
	for i := range 2000 {
		name := fmt.Sprintf("file-with-a-longer-name-%04d", i)
		r.write(name, "")
		want[name] = true
	}
	o := u.do(&volumev1.OpenAt{Parent: nil, Handle: u.root(), Flags: wireDirectory}).GetOpen()
	for _, plus := range []bool{false, true} {
		got := map[string]bool{}
		for cookie, end := uint64(0), false; !end; {
			page := u.do(&volumev1.ReadDir{Open: o.GetOpen(), Cookie: cookie, MaxBytes: 8192, Plus: plus}).GetReadDir()
			for _, e := range page.GetEntries() {
				if got[string(e.GetName())] {
					t.Errorf("%q came twice", e.GetName())
				}
				got[string(e.GetName())] = true
				cookie = e.GetCookie()
				if plus && e.GetObject().GetAttr().GetIno() != e.GetIno() {
					t.Errorf("%q: inode %d, object %v", e.GetName(), e.GetIno(), e.GetObject())
				}
				if e.GetType() != unix.S_IFREG {
					t.Errorf("%q has type %o", e.GetName(), e.GetType())
				}
			}
			end = page.GetEnd()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("plus %v: %s", plus, diff)
		}
	}
	u.fails(&volumev1.ReadDir{Open: o.GetOpen(), Cookie: 1 << 63}, syscall.EINVAL)
	u.fails(&volumev1.ReadDir{Open: 999}, syscall.EBADF)
	u.fails(&volumev1.Read{Open: o.GetOpen(), Length: 1}, syscall.EISDIR)
	u.do(&volumev1.Commit{Open: o.GetOpen(), Kind: volumev1.CommitKind_COMMIT_KIND_SYNC})
}

func TestSpaceCalls(t *testing.T) {
	_, u := oneUser(t)
	a, b := u.create("a"), u.create("b")
	u.do(&volumev1.Write{Open: a.GetOpen(), Offset: 1 << 20, Data: []byte("tail")})
	n := u.do(&volumev1.Seek{Open: a.GetOpen(), Whence: unix.SEEK_DATA}).GetCount().GetCount()
	if n == 0 || n > 1<<20 {
		t.Errorf("data begins at %d", n)
	}
	u.fails(&volumev1.Seek{Open: a.GetOpen(), Offset: 1 << 30, Whence: unix.SEEK_DATA}, syscall.ENXIO)
	u.fails(&volumev1.Seek{Open: a.GetOpen(), Whence: unix.SEEK_SET}, syscall.EINVAL)
	c := u.do(&volumev1.CopyRange{Source: a.GetOpen(), SourceOffset: 1 << 20, Target: b.GetOpen(), TargetOffset: 2, Length: 1 << 40}).GetCount()
	if c.GetCount() != 4 || c.GetObject().GetAttr().GetSize() != 6 {
		t.Errorf("copy: got %v", c)
	}
	size := u.do(&volumev1.Fallocate{Open: b.GetOpen(), Length: 4096}).GetObject().GetAttr().GetSize()
	if size != 4096 {
		t.Errorf("got size %d", size)
	}
	u.do(&volumev1.Fallocate{Open: b.GetOpen(), Length: 4, Mode: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE})
	if st := u.do(&volumev1.StatFs{}).GetStatFs(); st.GetBlocks() == 0 || u.c.StatFs().GetBlocks() == 0 {
		t.Errorf("got %v", st)
	}
}

func TestXattr(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "")
	os.Symlink("f", r.path("l"))
	if err := unix.Setxattr(r.path("f"), "user.box", []byte("b"), 0); err != nil {
		t.Skip("file system without extended attributes: ", err)
	}
	f, l := u.walk(u.root(), "f").GetHandle(), u.walk(u.root(), "l").GetHandle()
	name := []byte("user.mine")
	u.do(&volumev1.SetXattr{Handle: f, Name: name, Value: []byte("v\x00w")})
	if got := u.do(&volumev1.GetXattr{Handle: f, Name: name}).GetData().GetData(); string(got) != "v\x00w" {
		t.Errorf("got %q", got)
	}
	list := string(u.do(&volumev1.ListXattr{Handle: f}).GetData().GetData())
	if list != "user.box\x00user.mine\x00" && list != "user.mine\x00user.box\x00" {
		t.Errorf("got %q", list)
	}
	u.fails(&volumev1.SetXattr{Handle: f, Name: name, Flags: unix.XATTR_CREATE}, syscall.EEXIST)
	u.do(&volumev1.RemoveXattr{Handle: f, Name: name})
	u.fails(&volumev1.GetXattr{Handle: f, Name: name}, syscall.ENODATA)
	u.fails(&volumev1.GetXattr{Handle: f, Name: []byte("security.capability")}, syscall.ENODATA)
	u.fails(&volumev1.SetXattr{Handle: f, Name: []byte("security.capability")}, syscall.EOPNOTSUPP)
	u.fails(&volumev1.SetXattr{Handle: f, Name: []byte("trusted.x")}, syscall.EOPNOTSUPP)
	u.fails(&volumev1.SetXattr{Handle: f, Name: []byte("user.")}, syscall.EOPNOTSUPP)
	u.fails(&volumev1.SetXattr{Handle: l, Name: name}, syscall.EPERM)
	u.fails(&volumev1.GetXattr{Handle: l, Name: name}, syscall.ENODATA)
}

// TestNoWayOut moves a directory away and a link in its place while it is used.
func TestNoWayOut(t *testing.T) {
	r, u := oneUser(t)
	os.MkdirAll(r.path("d"), 0o755)
	r.write("d/f", "inside")
	secret := filepath.Join(filepath.Dir(r.dir), "secret")
	os.Mkdir(secret, 0o755)
	os.WriteFile(filepath.Join(secret, "f"), []byte("outside"), 0o644)
	d := u.walk(u.root(), "d")
	os.Rename(r.path("d"), r.path("away"))
	os.Symlink(secret, r.path("d"))

	o := u.do(&volumev1.OpenAt{Parent: d.GetHandle(), Name: []byte("f")}).GetOpen()
	if got := u.read(o.GetOpen()); got != "inside" {
		t.Errorf("got %q", got)
	}
	got := u.do(&volumev1.Walk{Handle: u.root(), Names: [][]byte{[]byte("d"), []byte("f")}}).GetWalk()
	if len(got.GetSteps()) != 1 || got.GetErrno() == 0 {
		t.Errorf("walked through a link: %v", got)
	}
}
