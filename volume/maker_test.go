package volume

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

func TestMakeNode(t *testing.T) {
	r, u := oneUser(t)
	mk := func(name string, mode uint32) *volumev1.MakeNode {
		return &volumev1.MakeNode{Parent: u.root(), Name: []byte(name), Mode: mode}
	}
	for _, kind := range []uint32{unix.S_IFDIR, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK} {
		name := fmt.Sprintf("%o", kind)
		ch := u.do(mk(name, kind|0o777)).GetChange()
		if got, want := ch.GetObject().GetAttr().GetMode(), kind|0o755; got != want || ch.GetParent() == nil {
			t.Errorf("%s: got mode %o, want %o", name, got, want)
		}
	}
	u.fails(mk("c", unix.S_IFCHR|0o600), syscall.EPERM)
	u.fails(mk("b", unix.S_IFBLK|0o600), syscall.EPERM)
	u.fails(mk("n", 0o600), syscall.EINVAL)
	u.fails(mk("40000", unix.S_IFDIR), syscall.EEXIST)
	if got := u.do(mk("suid", unix.S_IFREG|0o4755)).GetChange().GetObject().GetAttr().GetMode(); got != unix.S_IFREG|0o4755 {
		t.Errorf("got mode %o", got)
	}

	old := syscall.Umask(0o077) // the server's own umask must not count
	defer syscall.Umask(old)
	if got := u.do(mk("open", unix.S_IFDIR|0o777)).GetChange().GetObject().GetAttr().GetMode(); got != unix.S_IFDIR|0o755 {
		t.Errorf("under a umask: got mode %o", got)
	}
	if _, err := os.Stat(r.path("open")); err != nil {
		t.Error(err)
	}
}

func TestOwners(t *testing.T) {
	needRoot(t)
	r, u := oneUser(t)
	os.Chown(r.dir, 1234, 2345)
	os.Mkdir(r.path("sgid"), 0o755)
	os.Chown(r.path("sgid"), 0, 77)
	os.Chmod(r.path("sgid"), 0o755|os.ModeSetgid)
	sgid := u.walk(u.root(), "sgid").GetHandle()

	tests := []struct {
		name     string
		caller   *volumev1.Caller
		parent   []byte
		uid, gid uint32
	}{
		{"caller", &volumev1.Caller{Uid: 5, Gid: 6}, u.root(), 5, 6},
		{"squash", &volumev1.Caller{Uid: 5, Gid: 6, Squash: true}, u.root(), 1234, 2345},
		{"set-group-id directory", &volumev1.Caller{Uid: 5, Gid: 6}, sgid, 5, 77},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(what string, a *volumev1.Attr) {
				t.Helper()
				if a.GetUid() != tt.uid || a.GetGid() != tt.gid {
					t.Errorf("%s: got %d:%d, want %d:%d", what, a.GetUid(), a.GetGid(), tt.uid, tt.gid)
				}
			}
			do := func(op any) *volumev1.Reply {
				req := request(op)
				req.Caller = tt.caller
				reply, err := u.c.Do(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				return reply
			}
			name := func(s string) []byte { return []byte(s + tt.name) }
			check("file", do(&volumev1.OpenAt{Parent: tt.parent, Name: name("f"), Flags: 1 | wireCreate, Mode: 0o644}).GetOpen().GetObject().GetAttr())
			check("link", do(&volumev1.Symlink{Parent: tt.parent, Name: name("l"), Target: []byte("x")}).GetChange().GetObject().GetAttr())
			check("temporary", do(&volumev1.OpenAt{Parent: tt.parent, Tmpfile: true, Flags: 1, Mode: 0o644}).GetOpen().GetObject().GetAttr())
			dir := do(&volumev1.MakeNode{Parent: tt.parent, Name: name("d"), Mode: unix.S_IFDIR | 0o755}).GetChange().GetObject().GetAttr()
			check("directory", dir)
			if inherits := tt.gid == 77; (dir.GetMode()&unix.S_ISGID != 0) != inherits {
				t.Errorf("directory has mode %o", dir.GetMode())
			}
		})
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestDefaultACLIgnoresUmask(t *testing.T) {
	r, u := oneUser(t)
	// A default ACL of user::rwx, group::rwx, other::---, in the form of
	// linux/posix_acl_xattr.h.
	acl := []byte{2, 0, 0, 0,
		1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
		4, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
		0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}
	if err := unix.Setxattr(r.dir, "system.posix_acl_default", acl, 0); err != nil {
		t.Skip("file system without ACLs: ", err)
	}
	ch := u.do(&volumev1.MakeNode{Parent: u.root(), Name: []byte("f"), Mode: unix.S_IFREG | 0o666}).GetChange()
	if got := ch.GetObject().GetAttr().GetMode() & 0o777; got != 0o660 {
		t.Errorf("got mode %o, want 660", got)
	}
	u.do(&volumev1.GetXattr{Handle: u.root(), Name: []byte("system.posix_acl_default")})
}
