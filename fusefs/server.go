package fusefs

import (
	"encoding/binary"
	"fmt"
	"log"
	"runtime/debug"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Settings that a mount's options and the INIT answer must agree on.
const (
	// MaxRequest is the largest read or write, and the mount option max_read.
	MaxRequest = 1 << 20
	// Source and Subtype are what mountinfo shows: source sbgw, type fuse.sbgw.
	Source  = "sbgw"
	Subtype = "sbgw"

	maxBackground = 256
)

// Serve answers the kernel's requests on fd, an open /dev/fuse that is mounted
// already, and takes it over. It returns once INIT is answered; served is closed
// when the mount is gone and the FS closed.
func (f *FS) Serve(fd int) (served <-chan struct{}, err error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("duplicate the FUSE descriptor: %w", err)
	}
	f.kernel.Store(&kernelNotifier{
		inode: func(uint64, int64, int64) fuse.Status { return fuse.OK },
		entry: func(uint64, string) fuse.Status { return fuse.OK },
		epoch: func() error { return incrementEpoch(own) },
	})
	srv, err := fuse.NewServer(f, fmt.Sprintf("/dev/fd/%d", fd), f.mountOptions())
	if err != nil {
		_ = unix.Close(own)
		return nil, fmt.Errorf("start the FUSE server: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve()
		f.Close()
		_ = unix.Close(own)
	}()
	return done, nil
}

func (f *FS) mountOptions() *fuse.MountOptions {
	return &fuse.MountOptions{
		MaxWrite:             MaxRequest,
		MaxReadAhead:         MaxRequest,
		MaxBackground:        maxBackground,
		FsName:               Source,
		Name:                 Subtype,
		EnableLocks:          true,
		IgnoreSecurityLabels: true,
		DisableSplice:        true,
		ExtraCapabilities:    fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_DONT_MASK | fuse.CAP_READDIRPLUS_AUTO,
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		Logger:               log.New(debugWriter{f}, "", 0),
		PanicHandler: func(p any) fuse.Status {
			f.log.Error("panic in a request", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			return fuse.EIO
		},
	}
}

// debugWriter hands go-fuse's own messages on.
type debugWriter struct{ f *FS }

func (w debugWriter) Write(p []byte) (int, error) {
	w.f.log.Debug("fuse library", "message", string(p))
	return len(p), nil
}

// incrementEpoch sends FUSE_NOTIFY_INC_EPOCH (protocol 7.44), which makes every
// name the kernel knows be looked up again. go-fuse has no call for it. An older
// kernel answers EINVAL.
func incrementEpoch(fd int) error {
	const (
		headerSize     = 16
		notifyIncEpoch = 8
	)
	msg := make([]byte, headerSize) // length, error, unique
	binary.NativeEndian.PutUint32(msg, headerSize)
	binary.NativeEndian.PutUint32(msg[4:], notifyIncEpoch)
	_, err := unix.Write(fd, msg)
	return err
}
