package volume

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

func (o *op) setAttr(r *volumev1.SetAttr) error {
	obj, fd, _, err := o.target(r.GetOpen(), r.GetHandle())
	if err != nil {
		return err
	}
	if r.Size != nil {
		if err := o.truncate(obj, fd, r); err != nil {
			return err
		}
	}
	if r.Uid != nil || r.Gid != nil {
		if err := unix.Fchownat(fd, "", idOr(r.Uid), idOr(r.Gid), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if r.GetKillPriv() {
		if err := dropSetID(fd); err != nil {
			return err
		}
	}
	if r.Mode != nil {
		if obj.kind == unix.S_IFLNK {
			return syscall.EOPNOTSUPP
		}
		if err := unix.Chmod(procPath(fd), r.GetMode()&permBits); err != nil {
			return err
		}
	}
	if err := setTimes(fd, r); err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Object{Object: o.giveFD(obj, fd)}
	return nil
}

// idOr is an owner for chown(2): -1 leaves it.
func idOr(id *uint32) int {
	if id == nil {
		return -1
	}
	return int(*id)
}

func (o *op) truncate(obj *object, fd int, r *volumev1.SetAttr) error {
	if obj.isDir() {
		return syscall.EISDIR
	}
	if obj.kind != unix.S_IFREG || offsets(r.GetSize(), 0) != nil {
		return syscall.EINVAL
	}
	if r.GetOpen() != 0 {
		h, err := o.open(r.GetOpen())
		if err != nil {
			return err
		}
		h.wrote.Store(true)
		if h.access != unix.O_RDONLY {
			return unix.Ftruncate(h.file.fd, int64(r.GetSize()))
		}
	}
	return unix.Truncate(procPath(fd), int64(r.GetSize()))
}

func setTimes(fd int, r *volumev1.SetAttr) error {
	ts := [2]unix.Timespec{}
	ts[0] = timeOf(r.GetAtime(), r.GetAtimeNow())
	ts[1] = timeOf(r.GetMtime(), r.GetMtimeNow())
	if ts[0].Nsec == unix.UTIME_OMIT && ts[1].Nsec == unix.UTIME_OMIT {
		return nil
	}
	return unix.UtimesNanoAt(fd, "", ts[:], unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
}

func timeOf(t *volumev1.Time, now bool) unix.Timespec {
	switch {
	case now:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case t == nil:
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return unix.Timespec{Sec: t.GetSec(), Nsec: int64(min(t.GetNsec(), 1e9-1))}
}

const (
	userXattr = "user."
	aclXattr  = "system.posix_acl_"
	// XATTR_SIZE_MAX and XATTR_LIST_MAX of linux/limits.h.
	maxXattr = 64 << 10
)

// xattrName decides which attributes there are. Of the kernel's own nothing is
// shown, since the reader's kernel would act on it.
func xattrName(name []byte) (string, error) {
	s := string(name)
	switch {
	case len(s) > maxName:
		return "", syscall.ERANGE
	case strings.Contains(s, "\x00"):
		return "", syscall.EINVAL
	case strings.HasPrefix(s, userXattr) && len(s) > len(userXattr):
	case s == aclXattr+"access", s == aclXattr+"default":
	case strings.HasPrefix(s, "security."):
		return "", syscall.ENODATA
	default:
		return "", syscall.EOPNOTSUPP
	}
	return s, nil
}

func (o *op) getXattr(r *volumev1.GetXattr) error {
	name, err := xattrName(r.GetName())
	if err != nil {
		return err
	}
	obj, fd, _, err := o.object(r.GetHandle())
	if err != nil {
		return err
	}
	if obj.kind == unix.S_IFLNK {
		return syscall.ENODATA
	}
	return o.answerXattr(func(buf []byte) (int, error) { return unix.Getxattr(procPath(fd), name, buf) })
}

// answerXattr answers with what get puts into a buffer.
func (o *op) answerXattr(get func([]byte) (int, error)) error {
	buf := make([]byte, 4096)
	n, err := get(buf)
	if err == unix.ERANGE {
		buf = make([]byte, maxXattr)
		n, err = get(buf)
	}
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Data{Data: &volumev1.DataResult{Data: buf[:n]}}
	return nil
}

func (o *op) setXattr(r *volumev1.SetXattr) error {
	obj, fd, name, err := o.xattrTarget(r.GetHandle(), r.GetName())
	if err != nil {
		return err
	}
	if len(r.GetValue()) > maxXattr {
		return syscall.E2BIG
	}
	if err := unix.Setxattr(procPath(fd), name, r.GetValue(), int(r.GetFlags())); err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Object{Object: o.giveFD(obj, fd)}
	return nil
}

func (o *op) removeXattr(r *volumev1.RemoveXattr) error {
	obj, fd, name, err := o.xattrTarget(r.GetHandle(), r.GetName())
	if err != nil {
		return err
	}
	if err := unix.Removexattr(procPath(fd), name); err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Object{Object: o.giveFD(obj, fd)}
	return nil
}

// xattrTarget is an object whose attribute may change.
func (o *op) xattrTarget(h, name []byte) (*object, int, string, error) {
	s, err := xattrName(name)
	if err == syscall.ENODATA {
		err = syscall.EOPNOTSUPP // security.: not to be set
	}
	if err != nil {
		return nil, -1, "", err
	}
	obj, fd, _, err := o.object(h)
	if err == nil && obj.kind == unix.S_IFLNK {
		err = syscall.EPERM
	}
	return obj, fd, s, err
}

// listXattr answers with names that each end in NUL, as listxattr(2).
func (o *op) listXattr(r *volumev1.ListXattr) error {
	obj, fd, _, err := o.object(r.GetHandle())
	if err != nil {
		return err
	}
	if obj.kind == unix.S_IFLNK {
		o.reply.Result = &volumev1.Reply_Data{Data: &volumev1.DataResult{}}
		return nil
	}
	return o.answerXattr(func(buf []byte) (int, error) {
		n, err := unix.Listxattr(procPath(fd), buf)
		if err == unix.EOPNOTSUPP {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		kept := 0
		for name := range strings.SplitAfterSeq(string(buf[:n]), "\x00") {
			if _, err := xattrName([]byte(strings.TrimSuffix(name, "\x00"))); err == nil {
				kept += copy(buf[kept:], name)
			}
		}
		return kept, nil
	})
}
