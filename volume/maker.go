package volume

import (
	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	permBits  = 0o7777
	setIDBits = unix.S_ISUID | unix.S_ISGID
)

// maker gives a new object the mode and owner that the caller's own kernel would.
type maker struct {
	mode uint32 // to make it with
	// acl: the directory has a default ACL, so the kernel has made the mode of it
	// and no umask counts (acl(5)).
	acl      bool
	uid, gid int // gid is -1 where the directory's group is inherited
}

// maker for a new object of a directory.
func (o *op) maker(dir int, mode uint32) maker {
	c := o.r.GetCaller()
	m := maker{mode: mode & permBits, uid: int(c.GetUid()), gid: int(c.GetGid())}
	if n, err := unix.Getxattr(procPath(dir), "system.posix_acl_default", nil); err == nil && n > 0 {
		m.acl = true
	} else {
		m.mode &^= c.GetUmask()
	}
	if st, err := statFD(o.v.dir.fd); err == nil && c.GetSquash() {
		m.uid, m.gid = int(st.Uid), int(st.Gid)
	}
	if st, err := statFD(dir); err == nil && st.Mode&unix.S_ISGID != 0 {
		m.gid = -1
	}
	return m
}

// finish gives the object its owner and, as a chown clears set-id bits and this
// process may have a umask, its mode.
func (m maker) finish(fd int) error {
	st, err := statFD(fd)
	if err != nil {
		return err
	}
	chown := int(st.Uid) != m.uid || m.gid >= 0 && int(st.Gid) != m.gid
	if chown {
		err := unix.Fchownat(fd, "", m.uid, m.gid, unix.AT_EMPTY_PATH)
		if err == unix.EPERM && unix.Geteuid() != 0 {
			err = nil // a server without rights: everything is its own user's
		}
		if err != nil {
			return err
		}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	want := uint32(st.Mode) & permBits
	if !m.acl {
		want = m.mode
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			want |= uint32(st.Mode) & unix.S_ISGID
		}
	}
	if want == uint32(st.Mode)&permBits && (!chown || want&setIDBits == 0) {
		return nil
	}
	return unix.Chmod(procPath(fd), want)
}

// dropSetID clears what a write by an unprivileged caller clears: set-user-id,
// and set-group-id where it is no mark for mandatory locks (chmod(2)).
func dropSetID(fd int) error {
	st, err := statFD(fd)
	if err != nil {
		return err
	}
	mode := uint32(st.Mode) & permBits
	want := mode &^ unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		want &^= unix.S_ISGID
	}
	if want == mode || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	return unix.Chmod(procPath(fd), want)
}

// made finishes an object that has just been made under a name, and answers.
func (o *op) made(dir *object, dirFD int, name string, m maker) error {
	e, err := o.lookup(dir, dirFD, name)
	if err != nil {
		return err
	}
	if err := m.finish(e.fd); err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Change{Change: &volumev1.ChangeResult{
		Object: o.giveFD(e.object, e.fd), Parent: o.giveFD(dir, dirFD),
	}}
	return nil
}
