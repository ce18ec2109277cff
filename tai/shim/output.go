package shim

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lingerTime is how long an output must be silent, after its process ended, to be
// taken for finished although something in the background still holds it open.
const lingerTime = 200 * time.Millisecond

// output is the read end of a process's output. It ends when the last holder of
// the other end closed it, or when the process has ended, everything it wrote has
// been read, and nothing came for lingerTime.
type output struct {
	f      *os.File
	exited <-chan struct{}

	mu   sync.Mutex
	done bool // at its end, or given up
}

// processEnded wakes a reader that waits for more. It must be called after exited
// was closed.
func (o *output) processEnded() { o.f.SetReadDeadline(time.Now().Add(lingerTime)) }

func (o *output) Read(b []byte) (int, error) {
	for {
		ended := o.hasExited()
		if ended {
			// Each read has a deadline of its own: what a slow reader has not taken
			// yet is never lost.
			o.f.SetReadDeadline(time.Now().Add(lingerTime))
		}
		n, err := o.f.Read(b)
		if n > 0 {
			return n, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !ended {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, io.EOF
		}
		o.finish()
		if errors.Is(err, unix.EIO) { // a terminal whose last user is gone
			err = io.EOF
		}
		return 0, err
	}
}

func (o *output) hasExited() bool {
	select {
	case <-o.exited:
		return true
	default:
		return false
	}
}

func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
}

// release lets go of the output. If something still writes to it, what it writes
// is read and dropped until it ends, so that it does not die of a broken pipe.
func (o *output) release() {
	o.mu.Lock()
	done := o.done
	o.done = true
	o.mu.Unlock()
	if done {
		o.f.Close()
		return
	}
	o.f.SetReadDeadline(time.Time{})
	go func() {
		defer o.f.Close()
		io.Copy(io.Discard, o.f)
	}()
}

// pipe makes a pipe. ours is for this process's poller, theirs is blocking, as
// programs expect it, and belongs to the user who will have it open.
func pipe(uid, gid uint32, oursReads bool) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	our, their := fds[0], fds[1]
	if !oursReads {
		our, their = their, our
	}
	err = errors.Join(unix.SetNonblock(our, true), unix.Fchown(their, int(uid), int(gid)))
	if err != nil {
		unix.Close(our)
		unix.Close(their)
		return nil, nil, err
	}
	return os.NewFile(uintptr(our), "pipe"), os.NewFile(uintptr(their), "pipe"), nil
}
