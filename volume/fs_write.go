package volume

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"path"
	"syscall"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// defaultDirMode is that of parents made on the way.
const defaultDirMode = 0o755

// removeTries bounds how often a directory is emptied again that others fill.
const removeTries = 8

// WriteFile implements workspace.FS: it writes beside the file and renames over it.
func (f *volumeFS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return f.visit("write", name, false, func(v *visit) error {
		at, err := v.resolve(name, true)
		if errors.Is(err, syscall.ENOENT) {
			if err = v.mkdirAll(path.Dir(name), defaultDirMode); err == nil {
				at, err = v.resolve(name, true)
			}
		}
		if err != nil {
			return err
		}
		if at.object != nil && isDir(at.object) {
			return syscall.EISDIR
		}
		return v.replace(at, data, wireMode(perm))
	})
}

// replace makes data the content of a file, which keeps mode and owner if it is
// there already.
func (v *visit) replace(at found, data []byte, mode uint32) error {
	if kind := kindOfObject(at.object); at.object != nil && kind != syscall.S_IFREG {
		return syscall.EINVAL // a FIFO, socket or device
	}
	if at.object != nil {
		mode = at.object.GetAttr().GetMode() & permBits
	}
	temp := ".sbgw-" + rand.Text()
	err := v.writeNew(at.parent, temp, data, mode)
	if err == nil && at.object != nil {
		err = v.keepOwner(at, temp, mode)
	}
	if err == nil {
		_, err = v.do(&volumev1.Request{Op: &volumev1.Request_Rename{Rename: &volumev1.Rename{
			Parent: at.parent.GetHandle(), Name: []byte(temp),
			NewParent: at.parent.GetHandle(), NewName: []byte(at.name),
		}}})
	}
	if err != nil {
		v.unlink(at.parent, temp, false) // what is left of it; err is what counts
	}
	return err
}

func (v *visit) writeNew(dir *volumev1.Object, name string, data []byte, mode uint32) error {
	r, err := v.do(&volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
		Parent: dir.GetHandle(), Name: []byte(name), Mode: mode,
		Flags: syscall.O_WRONLY | wireCreate | wireExcl,
	}}})
	if err != nil {
		return err
	}
	open := r.GetOpen().GetOpen()
	limit := int(v.f.c.Hello().GetLimits().GetMaxPayload())
	for at := 0; at < len(data) && err == nil; {
		r, err = v.do(&volumev1.Request{Op: &volumev1.Request_Write{Write: &volumev1.Write{
			Open: open, Offset: uint64(at), Data: data[at:min(at+limit, len(data))],
		}}})
		n := int(r.GetWrite().GetCount())
		if err == nil && n == 0 {
			err = syscall.EIO
		}
		at += n
	}
	if err == nil {
		_, err = v.do(&volumev1.Request{Op: &volumev1.Request_Commit{Commit: &volumev1.Commit{
			Open: open, Kind: volumev1.CommitKind_COMMIT_KIND_FLUSH,
		}}})
	}
	_, rerr := v.do(&volumev1.Request{Op: &volumev1.Request_Release{Release: &volumev1.Release{Opens: []uint64{open}}}})
	if err == nil {
		err = rerr
	}
	return err
}

// keepOwner gives the new file the owner of the one it replaces.
func (v *visit) keepOwner(at found, temp string, mode uint32) error {
	steps, err := v.walk(at.parent, []string{temp})
	if err != nil {
		return err
	}
	was, is := at.object.GetAttr(), steps[0].GetAttr()
	if was.GetUid() == is.GetUid() && was.GetGid() == is.GetGid() {
		return nil
	}
	_, err = v.do(&volumev1.Request{Op: &volumev1.Request_SetAttr{SetAttr: &volumev1.SetAttr{
		Handle: steps[0].GetHandle(), Uid: &was.Uid, Gid: &was.Gid, Mode: &mode,
	}}})
	return err
}

// MkdirAll implements workspace.FS.
func (f *volumeFS) MkdirAll(name string, perm fs.FileMode) error {
	return f.visit("mkdir", name, false, func(v *visit) error { return v.mkdirAll(name, wireMode(perm)) })
}

func (v *visit) mkdirAll(name string, mode uint32) error {
	at, err := v.resolve(name, true)
	if errors.Is(err, syscall.ENOENT) && name != "." {
		if err = v.mkdirAll(path.Dir(name), mode); err == nil {
			at, err = v.resolve(name, true)
		}
	}
	if err != nil {
		return err
	}
	if at.object == nil {
		_, err = v.do(&volumev1.Request{Op: &volumev1.Request_MakeNode{MakeNode: &volumev1.MakeNode{
			Parent: at.parent.GetHandle(), Name: []byte(at.name), Mode: syscall.S_IFDIR | mode,
		}}})
		if errors.Is(err, syscall.EEXIST) { // somebody was faster
			at, err = v.existing(name, true)
		}
	}
	if err == nil && at.object != nil && !isDir(at.object) {
		err = syscall.ENOTDIR
	}
	return err
}

// Remove implements workspace.FS.
func (f *volumeFS) Remove(name string) error {
	return f.visit("remove", name, false, func(v *visit) error {
		at, err := v.removable(name)
		if err != nil {
			return err
		}
		return v.unlink(at.parent, at.name, isDir(at.object))
	})
}

// removable is what a path to remove means.
func (v *visit) removable(name string) (found, error) {
	if name == "." {
		return found{}, syscall.EINVAL
	}
	at, err := v.existing(name, false)
	at.name = path.Base(name)
	return at, err
}

func (v *visit) unlink(dir *volumev1.Object, name string, directory bool) error {
	_, err := v.do(&volumev1.Request{Op: &volumev1.Request_Unlink{Unlink: &volumev1.Unlink{
		Parent: dir.GetHandle(), Name: []byte(name), Directory: directory,
	}}})
	return err
}

// RemoveAll implements workspace.FS.
func (f *volumeFS) RemoveAll(name string) error {
	return f.visit("removeall", name, false, func(v *visit) error {
		at, err := v.removable(name)
		if err == nil {
			err = v.removeTree(at.parent, at.name, isDir(at.object))
		}
		if errors.Is(err, syscall.ENOENT) {
			err = nil
		}
		return err
	})
}

// removeTree removes an entry with all below it. Links are not followed.
func (v *visit) removeTree(dir *volumev1.Object, name string, directory bool) error {
	err := v.unlink(dir, name, directory)
	if errors.Is(err, syscall.EISDIR) {
		directory = true
		err = v.unlink(dir, name, true)
	}
	for range removeTries {
		if !directory || !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
		if err := v.empty(dir, name); err != nil {
			return err
		}
		err = v.unlink(dir, name, true)
	}
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

// empty removes what is in a directory.
func (v *visit) empty(parent *volumev1.Object, name string) error {
	inner := &visit{f: v.f}
	defer inner.end()
	steps, err := inner.walk(parent, []string{name})
	if err != nil {
		return err
	}
	dir := steps[0]
	if !isDir(dir) {
		return syscall.ENOTDIR
	}
	r, err := inner.do(&volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
		Handle: dir.GetHandle(), Flags: wireDirectory,
	}}})
	if err != nil {
		return err
	}
	open := r.GetOpen().GetOpen()
	var entries []*volumev1.DirEntry
	for cookie, end := uint64(0), false; !end && err == nil; {
		r, err = inner.do(&volumev1.Request{Op: &volumev1.Request_ReadDir{ReadDir: &volumev1.ReadDir{
			Open: open, Cookie: cookie, MaxBytes: maxDirBytes,
		}}})
		page := r.GetReadDir()
		entries = append(entries, page.GetEntries()...)
		end = page.GetEnd() || len(page.GetEntries()) == 0
		if !end {
			cookie = page.GetEntries()[len(page.GetEntries())-1].GetCookie()
		}
	}
	inner.do(&volumev1.Request{Op: &volumev1.Request_Release{Release: &volumev1.Release{Opens: []uint64{open}}}})
	for _, e := range entries {
		if err != nil {
			return err
		}
		err = inner.removeTree(dir, string(e.GetName()), e.GetType() == syscall.S_IFDIR)
	}
	return err
}

// Rename implements workspace.FS.
func (f *volumeFS) Rename(oldName, newName string) error {
	if !fs.ValidPath(newName) {
		return &fs.PathError{Op: "rename", Path: newName, Err: fs.ErrInvalid}
	}
	return f.visit("rename", oldName, false, func(v *visit) error {
		from, err := v.removable(oldName)
		if err != nil {
			return err
		}
		if newName == "." {
			return syscall.EINVAL
		}
		to, err := v.resolve(newName, false)
		if err != nil {
			return err
		}
		_, err = v.do(&volumev1.Request{Op: &volumev1.Request_Rename{Rename: &volumev1.Rename{
			Parent: from.parent.GetHandle(), Name: []byte(from.name),
			NewParent: to.parent.GetHandle(), NewName: []byte(path.Base(newName)),
		}}})
		return err
	})
}
