package fusefs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/volume"
)

// maxPayload is how many bytes one request to the server may carry.
func (f *FS) maxPayload() uint32 {
	const most = 1 << 20
	if n := f.vol.Load().Hello().GetLimits().GetMaxPayload(); n > 0 && n < most {
		return n
	}
	return most
}

// Read reads until the size asked for or the end of the file: the kernel takes a
// short answer for the end.
func (f *FS) Read(cancel <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	data, err := f.read(f.request(cancel, &in.InHeader, 0), in)
	if err != nil {
		return nil, f.status("read", err)
	}
	return fuse.ReadResultData(data), fuse.OK
}

func (f *FS) read(r request, in *fuse.ReadIn) ([]byte, error) {
	var data []byte
	for limit := f.maxPayload(); uint32(len(data)) < in.Size; {
		want := min(in.Size-uint32(len(data)), limit)
		a, err := f.op(r, true, func() (*volumev1.Request, error) {
			_, open, err := f.file(r, in.Fh)
			return &volumev1.Request{Op: &volumev1.Request_Read{Read: &volumev1.Read{
				Open: open, Offset: in.Offset + uint64(len(data)), Length: want}}}, err
		})
		if err != nil {
			return nil, err
		}
		res := a.GetRead()
		got := res.GetData()
		if uint32(len(got)) > want {
			return nil, syscall.EIO
		}
		if data == nil {
			data = got
		} else {
			data = append(data, got...)
		}
		if len(got) == 0 || res.GetEof() {
			break
		}
	}
	return data, nil
}

// Writev writes; O_APPEND is what the flags of this request say, and never for
// pages written out by the kernel.
func (f *FS) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	n, err := f.write(f.request(cancel, &in.InHeader, 0), in, data)
	return n, f.status("write", err)
}

func (f *FS) write(r request, in *fuse.WriteIn, data [][]byte) (uint32, error) {
	// A copy: the buffers are used again as soon as a killed caller is answered.
	var all []byte
	for _, d := range data {
		all = append(all, d...)
	}
	mapped := in.WriteFlags&fuse.WRITE_CACHE != 0
	atEnd := in.Flags&syscall.O_APPEND != 0 && !mapped
	var done uint32
	for limit := f.maxPayload(); done < uint32(len(all)) || done == 0; {
		part := all[done:min(uint32(len(all)), done+limit)]
		var fl *file
		a, err := f.op(r, !atEnd, func() (*volumev1.Request, error) {
			var open uint64
			var err error
			fl, open, err = f.file(r, in.Fh)
			return &volumev1.Request{Op: &volumev1.Request_Write{Write: &volumev1.Write{
				Open: open, Offset: in.Offset + uint64(done), Data: part, Append: atEnd,
				Sync:     in.Flags&syscall.O_DSYNC != 0 && !mapped,
				KillPriv: in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0}}}, err
		})
		if err != nil {
			if done > 0 {
				return done, nil
			}
			return 0, err
		}
		res := a.GetWrite()
		f.wrote(fl.node, res, a)
		if atEnd && res.GetOffset() != in.Offset+uint64(done) {
			f.notify.submit(note{kind: notePages, node: fl.node.id})
		}
		if res.GetCount() == 0 || res.GetCount() > uint32(len(part)) {
			break
		}
		done += res.GetCount()
	}
	return done, nil
}

func (f *FS) wrote(n *node, res *volumev1.WriteResult, a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.wrote, n.unsynced = true, true
	if o := res.GetObject(); o != nil {
		f.creditLocked(n, o, a)
		f.learnLocked(n, o) // the kernel drops the attributes of what it writes
	}
}

// Flush is one close(2). The server hears of it if something was written or
// locked.
func (f *FS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return f.status("flush", f.flush(f.request(cancel, &in.InHeader, 0), in))
}

func (f *FS) flush(r request, in *fuse.FlushIn) error {
	f.mu.Lock()
	fl := f.files[in.Fh]
	if fl == nil {
		f.mu.Unlock()
		return syscall.EBADF
	}
	n := fl.node
	unlock := n.lockOwners[in.LockOwner]
	idle := !n.wrote && !unlock && !n.lost
	if fl.flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		fl.flushed = time.Now()
	}
	n.wrote = false
	delete(n.lockOwners, in.LockOwner)
	f.mu.Unlock()
	if idle {
		return nil
	}
	return f.commit(r, in.Fh, &volumev1.Commit{
		Kind: volumev1.CommitKind_COMMIT_KIND_FLUSH, LockOwner: in.LockOwner, Unlock: unlock})
}

// Fsync returns when the server's disk has the file.
func (f *FS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	kind := volumev1.CommitKind_COMMIT_KIND_SYNC
	if in.FsyncFlags&fsyncDataOnly != 0 {
		kind = volumev1.CommitKind_COMMIT_KIND_DATASYNC
	}
	return f.status("fsync", f.commit(f.request(cancel, &in.InHeader, 0), in.Fh, &volumev1.Commit{Kind: kind}))
}

// fsyncDataOnly is FUSE_FSYNC_FDATASYNC of linux/fuse.h.
const fsyncDataOnly = 1 << 0

func (f *FS) commit(r request, fh uint64, c *volumev1.Commit) error {
	var fl *file
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		var err error
		fl, c.Open, err = f.file(r, fh)
		return &volumev1.Request{Op: &volumev1.Request_Commit{Commit: c}}, err
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noteLocked(a.GetObject(), a)
	n := fl.node
	if c.Kind != volumev1.CommitKind_COMMIT_KIND_FLUSH {
		n.unsynced = false
	}
	if n.lost {
		n.lost = false
		return syscall.EIO
	}
	return nil
}

// Lseek finds data and holes; the kernel asks for nothing else.
func (f *FS) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	r := f.request(cancel, &in.InHeader, 0)
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		_, open, err := f.file(r, in.Fh)
		return &volumev1.Request{Op: &volumev1.Request_Seek{Seek: &volumev1.Seek{
			Open: open, Offset: in.Offset, Whence: in.Whence}}}, err
	})
	if err != nil {
		return f.status("lseek", err)
	}
	f.note(a)
	out.Offset = a.GetCount().GetCount()
	return fuse.OK
}

// Fallocate passes the mode on as it is.
func (f *FS) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	r := f.request(cancel, &in.InHeader, 0)
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		_, open, err := f.file(r, in.Fh)
		return &volumev1.Request{Op: &volumev1.Request_Fallocate{Fallocate: &volumev1.Fallocate{
			Open: open, Offset: in.Offset, Length: in.Length, Mode: in.Mode}}}, err
	})
	if err != nil {
		return f.status("fallocate", err)
	}
	f.note(a)
	return fuse.OK
}

// maxCopy bounds one server-side copy; the caller goes on from there.
const maxCopy = 1 << 30

// CopyFileRange copies at the server.
func (f *FS) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	r := f.request(cancel, &in.InHeader, 0)
	var target *file
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		q := &volumev1.CopyRange{SourceOffset: in.OffIn, TargetOffset: in.OffOut, Length: min(in.Len, maxCopy)}
		var err error
		if _, q.Source, err = f.file(r, in.FhIn); err != nil {
			return nil, err
		}
		target, q.Target, err = f.file(r, in.FhOut)
		return &volumev1.Request{Op: &volumev1.Request_CopyRange{CopyRange: q}}, err
	})
	if err != nil {
		return 0, f.status("copy_file_range", err)
	}
	f.mu.Lock()
	target.node.wrote, target.node.unsynced = true, true
	f.mu.Unlock()
	f.note(a)
	return uint32(min(a.GetCount().GetCount(), maxCopy)), fuse.OK
}

// Ioctl: none is known, which is ENOTTY and not the ENOSYS that would stop the
// kernel from asking.
func (f *FS) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return fuse.Status(syscall.ENOTTY)
}

// note takes every object in a reply for what it says.
func (f *FS) note(a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range volume.ObjectsIn(a.Reply) {
		f.noteLocked(o, a)
	}
}
