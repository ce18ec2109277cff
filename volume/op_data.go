package volume

import (
	"syscall"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// maxCopy bounds what one CopyRange moves, so that its answer comes in time.
const maxCopy = 1 << 28

// regular returns an open regular file.
func (o *op) regular(id uint64) (*open, error) {
	h, err := o.open(id)
	if err != nil {
		return nil, err
	}
	if h.object.isDir() {
		return nil, syscall.EISDIR
	}
	return h, nil
}

// offsets refuses a range that is not one of a file.
func offsets(offset, length uint64) error {
	const maxOffset = 1<<63 - 1
	if offset > maxOffset || length > maxOffset-offset {
		return syscall.EINVAL
	}
	return nil
}

func (o *op) read(r *volumev1.Read) error {
	h, err := o.regular(r.GetOpen())
	if err != nil {
		return err
	}
	if err := offsets(r.GetOffset(), uint64(r.GetLength())); err != nil {
		return err
	}
	// The version is from before, so that the data is at least as new.
	st, err := statFD(h.file.fd)
	if err != nil {
		return err
	}
	want := min(r.GetLength(), maxPayload)
	buf := make([]byte, fit(want, r.GetOffset(), st.Size))
	n := 0
	for n < len(buf) {
		m, err := unix.Pread(h.file.fd, buf[n:], int64(r.GetOffset())+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil && n == 0 {
			return err
		}
		if err != nil || m == 0 {
			break
		}
		n += m
	}
	v := versionOf(st)
	o.reply.Result = &volumev1.Reply_Read{Read: &volumev1.ReadResult{
		Data: buf[:n], Version: v[:], Eof: n < int(want),
	}}
	return nil
}

// fit is how much to allocate for a read: no more than a file of this size may
// have to give, and enough to see that it grew.
func fit(want uint32, offset, size uint64) uint32 {
	const slack = 4096
	if size <= offset {
		return min(want, slack)
	}
	return uint32(min(uint64(want), size-offset+slack))
}

func (o *op) write(r *volumev1.Write) error {
	h, err := o.regular(r.GetOpen())
	if err != nil {
		return err
	}
	data := r.GetData()
	if len(data) > maxPayload {
		return syscall.EINVAL
	}
	if err := offsets(r.GetOffset(), uint64(len(data))); err != nil && !r.GetAppend() {
		return err
	}
	h.wrote.Store(true)
	if r.GetKillPriv() {
		if err := dropSetID(h.file.fd); err != nil {
			return err
		}
	}
	var n int
	at := int64(r.GetOffset())
	if r.GetAppend() {
		n, at, err = h.append(data)
	} else {
		n, err = writeAt(h.file.fd, data, at)
	}
	if err != nil {
		return err
	}
	if r.GetSync() {
		if err := unix.Fdatasync(h.file.fd); err != nil {
			return err
		}
	}
	o.reply.Result = &volumev1.Reply_Write{Write: &volumev1.WriteResult{
		Count: uint32(n), Offset: uint64(at), Object: o.giveFD(h.object, h.file.fd),
	}}
	return nil
}

// writeAt writes all, or returns what it could write.
func writeAt(fd int, data []byte, at int64) (n int, err error) {
	for n < len(data) {
		m, err := unix.Pwrite(fd, data[n:], at+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil && n == 0 {
			return 0, err
		}
		if err != nil || m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

// append writes at the file's end, in one system call so that it is atomic, and
// returns where that was: with offset -1 the kernel moves the descriptor's
// position behind what it wrote (pwritev2(2)).
func (h *open) append(data []byte) (n int, at int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		n, err = unix.Pwritev2(h.file.fd, [][]byte{data}, -1, unix.RWF_APPEND)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return 0, 0, err
	}
	end, err := unix.Seek(h.file.fd, 0, unix.SEEK_CUR)
	return n, end - int64(n), err
}

func (o *op) commit(r *volumev1.Commit) error {
	h, err := o.open(r.GetOpen())
	if err != nil {
		return err
	}
	fd := h.file.fd
	if r.GetUnlock() {
		o.s.unlockOwner(lockKey{h.object, volumev1.LockKind_LOCK_KIND_POSIX, r.GetLockOwner()})
	}
	switch r.GetKind() {
	case volumev1.CommitKind_COMMIT_KIND_FLUSH:
		err = h.flush()
	case volumev1.CommitKind_COMMIT_KIND_DATASYNC:
		err = unix.Fdatasync(fd)
	case volumev1.CommitKind_COMMIT_KIND_SYNC:
		err = unix.Fsync(fd)
	case volumev1.CommitKind_COMMIT_KIND_SYNCFS:
		err = unix.Syncfs(fd)
	default:
		err = syscall.EINVAL
	}
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Object{Object: o.giveFD(h.object, fd)}
	return nil
}

// flush reports what a close would: some file systems tell of a write's error
// only there (close(2)).
func (h *open) flush() error {
	if !h.wrote.Load() {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(h.file.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (o *op) release(r *volumev1.Release) error {
	for _, id := range r.GetOpens() {
		o.s.mu.Lock()
		h := o.s.opens[id]
		delete(o.s.opens, id)
		o.s.mu.Unlock()
		if h != nil {
			o.s.unlockOpen(h)
			h.close()
		}
	}
	return nil
}

func (o *op) forget(r *volumev1.Forget) error {
	for _, f := range r.GetHandles() {
		o.s.forget(f.GetHandle(), f.GetCount())
	}
	return nil
}

func (o *op) fallocate(r *volumev1.Fallocate) error {
	h, err := o.regular(r.GetOpen())
	if err != nil {
		return err
	}
	if err := offsets(r.GetOffset(), r.GetLength()); err != nil {
		return err
	}
	h.wrote.Store(true)
	if err := unix.Fallocate(h.file.fd, r.GetMode(), int64(r.GetOffset()), int64(r.GetLength())); err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Object{Object: o.giveFD(h.object, h.file.fd)}
	return nil
}

// seek finds data and holes; the other kinds need no server.
func (o *op) seek(r *volumev1.Seek) error {
	h, err := o.regular(r.GetOpen())
	if err != nil {
		return err
	}
	if r.GetWhence() != unix.SEEK_DATA && r.GetWhence() != unix.SEEK_HOLE {
		return syscall.EINVAL
	}
	if err := offsets(r.GetOffset(), 0); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := unix.Seek(h.file.fd, int64(r.GetOffset()), int(r.GetWhence()))
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Count{Count: &volumev1.CountResult{Count: uint64(n)}}
	return nil
}

func (o *op) copyRange(r *volumev1.CopyRange) error {
	from, err := o.regular(r.GetSource())
	if err != nil {
		return err
	}
	to, err := o.regular(r.GetTarget())
	if err != nil {
		return err
	}
	length := min(r.GetLength(), maxCopy)
	if offsets(r.GetSourceOffset(), length) != nil || offsets(r.GetTargetOffset(), length) != nil {
		return syscall.EINVAL
	}
	to.wrote.Store(true)
	in, out := int64(r.GetSourceOffset()), int64(r.GetTargetOffset())
	done := 0
	for done < int(length) {
		n, err := unix.CopyFileRange(from.file.fd, &in, to.file.fd, &out, int(length)-done, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil && done == 0 {
			return err
		}
		if err != nil || n == 0 {
			break
		}
		done += n
	}
	o.reply.Result = &volumev1.Reply_Count{Count: &volumev1.CountResult{
		Count: uint64(done), Object: o.giveFD(to.object, to.file.fd),
	}}
	return nil
}
