package volume

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// place is a name in a directory.
type place struct {
	dir  *object
	fd   int
	name string
}

func (o *op) place(parent, name []byte) (place, error) {
	s, err := checkName(name)
	if err != nil {
		return place{}, err
	}
	dir, fd, err := o.directory(parent)
	return place{dir, fd, s}, err
}

func (o *op) makeNode(r *volumev1.MakeNode) error {
	p, err := o.place(r.GetParent(), r.GetName())
	if err != nil {
		return err
	}
	m := o.maker(p.fd, r.GetMode())
	switch kind := r.GetMode() & unix.S_IFMT; kind {
	case unix.S_IFDIR:
		err = unix.Mkdirat(p.fd, p.name, m.mode)
	case unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
		err = unix.Mknodat(p.fd, p.name, m.mode|kind, 0)
	case unix.S_IFCHR, unix.S_IFBLK:
		err = syscall.EPERM
	default:
		err = syscall.EINVAL
	}
	if err != nil {
		return err
	}
	return o.made(p.dir, p.fd, p.name, m)
}

func (o *op) symlink(r *volumev1.Symlink) error {
	p, err := o.place(r.GetParent(), r.GetName())
	if err != nil {
		return err
	}
	if slices.Contains(r.GetTarget(), 0) {
		return syscall.EINVAL
	}
	m := o.maker(p.fd, 0o777)
	if err := unix.Symlinkat(string(r.GetTarget()), p.fd, p.name); err != nil {
		return err
	}
	return o.made(p.dir, p.fd, p.name, m)
}

func (o *op) link(r *volumev1.Link) error {
	obj, fd, _, err := o.object(r.GetHandle())
	if err != nil {
		return err
	}
	p, err := o.place(r.GetParent(), r.GetName())
	if err != nil {
		return err
	}
	if obj.isDir() {
		return syscall.EPERM
	}
	err = unix.Linkat(fd, "", p.fd, p.name, unix.AT_EMPTY_PATH)
	if err == unix.ENOENT { // also: without CAP_DAC_READ_SEARCH (open(2), O_TMPFILE)
		err = unix.Linkat(unix.AT_FDCWD, procPath(fd), p.fd, p.name, unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Change{Change: &volumev1.ChangeResult{
		Object: o.giveFD(obj, fd), Parent: o.giveFD(p.dir, p.fd),
	}}
	return nil
}

func (o *op) rename(r *volumev1.Rename) error {
	if r.GetFlags()&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return syscall.EINVAL // a whiteout is a device
	}
	from, err := o.place(r.GetParent(), r.GetName())
	if err != nil {
		return err
	}
	to, err := o.place(r.GetNewParent(), r.GetNewName())
	if err != nil {
		return err
	}
	victim := o.known(to)
	if err := unix.Renameat2(from.fd, from.name, to.fd, to.name, uint(r.GetFlags())); err != nil {
		return err
	}
	out := &volumev1.ChangeResult{}
	if e, err := o.lookup(to.dir, to.fd, to.name); err == nil {
		out.Object = o.give(e)
		if victim.object == e.object {
			victim.object = nil // both names are links to one object, and stay
		}
	}
	out.Victim = o.giveVictim(victim)
	out.Parent = o.giveFD(from.dir, from.fd)
	if to.dir != from.dir {
		out.NewParent = o.giveFD(to.dir, to.fd)
	}
	o.reply.Result = &volumev1.Reply_Change{Change: out}
	return nil
}

func (o *op) unlink(r *volumev1.Unlink) error {
	p, err := o.place(r.GetParent(), r.GetName())
	if err != nil {
		return err
	}
	victim := o.known(p)
	flags := 0
	if r.GetDirectory() {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(p.fd, p.name, flags); err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Change{Change: &volumev1.ChangeResult{
		Victim: o.giveVictim(victim), Parent: o.giveFD(p.dir, p.fd),
	}}
	return nil
}

// known returns the object that a name means, if the session knows it.
func (o *op) known(p place) entry {
	fd, err := openBeneath(p.fd, p.name, unix.O_PATH, 0)
	if err != nil {
		return entry{}
	}
	f := newFile(fd)
	o.keep(f)
	st, err := statFD(fd)
	if err != nil {
		return entry{}
	}
	obj := o.v.known(f, st)
	if obj == nil {
		return entry{}
	}
	o.objects = append(o.objects, obj)
	o.v.mu.Lock()
	defer o.v.mu.Unlock()
	if o.s.refs[obj] == 0 {
		return entry{}
	}
	return entry{object: obj, fd: fd}
}

// giveVictim makes the message of an object that has lost a name.
func (o *op) giveVictim(e entry) *volumev1.Object {
	if e.object == nil {
		return nil
	}
	st, err := statFD(e.fd)
	if err != nil {
		return nil
	}
	out := o.s.give(e.object, st)
	if st.Nlink == 0 {
		o.v.buried(e.object)
	}
	return out
}
