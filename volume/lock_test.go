package volume

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	posix = volumev1.LockKind_LOCK_KIND_POSIX
	flock = volumev1.LockKind_LOCK_KIND_FLOCK
)

func lockOf(open uint64, kind volumev1.LockKind, owner uint64, typ uint32) *volumev1.Lock {
	return &volumev1.Lock{Open: open, Kind: kind, Owner: owner, Type: typ, End: maxLockEnd, Pid: uint32(1000 + owner)}
}

// ofdLock tries a lock as a process in the box would, but for F_SETLK: those of
// this process end whenever it closes the file, and the server is in it.
func ofdLock(f *os.File, typ int16) error {
	lk := unix.Flock_t{Type: typ}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
}

// lockHolder names the file that a second process of this binary locks.
const lockHolder = "SBGW_TEST_LOCK"

// holdLock is the main function of that process: F_SETLK, until end-of-file.
func holdLock(path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 5, Len: 5})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locked")
	io.Copy(io.Discard, os.Stdin)
}

func TestLockOfAnotherProcess(t *testing.T) {
	r, u := oneUser(t)
	o := u.create("f").GetOpen()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lockHolder+"="+r.path("f"))
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	u.fails(lockOf(o, posix, 1, unix.F_WRLCK), syscall.EAGAIN)
	test := lockOf(o, posix, 1, unix.F_RDLCK)
	test.Test = true
	got := u.do(test).GetLock()
	want := &volumev1.LockResult{Type: unix.F_WRLCK, Start: 5, End: 9, Pid: uint32(cmd.Process.Pid)}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	wait := lockOf(o, posix, 1, unix.F_WRLCK)
	wait.Wait = true
	in.Close()
	u.do(wait)
}

func TestLocksAreTheKernels(t *testing.T) {
	for _, kind := range []volumev1.LockKind{posix, flock} {
		t.Run(kind.String(), func(t *testing.T) {
			r, u := oneUser(t)
			other := r.open(Options{})
			o := u.create("f").GetOpen()
			p := other.do(&volumev1.OpenAt{Parent: other.root(), Name: []byte("f"), Flags: syscall.O_RDWR}).GetOpen().GetOpen()
			box, err := os.OpenFile(r.path("f"), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer box.Close()
			try := func(typ int16) error {
				if kind == posix {
					return ofdLock(box, typ)
				}
				return unix.Flock(int(box.Fd()), map[int16]int{
					unix.F_RDLCK: unix.LOCK_SH, unix.F_WRLCK: unix.LOCK_EX, unix.F_UNLCK: unix.LOCK_UN,
				}[typ]|unix.LOCK_NB)
			}

			u.do(lockOf(o, kind, 1, unix.F_RDLCK))
			u.do(lockOf(o, kind, 2, unix.F_RDLCK))
			u.fails(lockOf(o, kind, 2, unix.F_WRLCK), syscall.EAGAIN)
			other.fails(lockOf(p, kind, 1, unix.F_WRLCK), syscall.EAGAIN)
			if err := try(unix.F_WRLCK); err != unix.EAGAIN && err != unix.EACCES {
				t.Errorf("the machine locked over it: %v", err)
			}
			if err := try(unix.F_RDLCK); err != nil {
				t.Errorf("shared lock of the machine: %v", err)
			}
			u.do(lockOf(o, kind, 2, unix.F_UNLCK))
			u.fails(lockOf(o, kind, 1, unix.F_WRLCK), syscall.EAGAIN) // the machine's own
			if err := try(unix.F_UNLCK); err != nil {
				t.Fatal(err)
			}
			u.do(lockOf(o, kind, 1, unix.F_WRLCK)) // upgraded
			if err := try(unix.F_RDLCK); err == nil {
				t.Error("the machine locked over an exclusive lock")
			}
			u.do(&volumev1.Release{Opens: []uint64{o}})
			if err := try(unix.F_WRLCK); err != nil {
				t.Errorf("locked after the last open was released: %v", err)
			}
		})
	}
}

func TestLockRangesAndTest(t *testing.T) {
	_, u := oneUser(t)
	o := u.create("f").GetOpen()
	a := lockOf(o, posix, 1, unix.F_WRLCK)
	a.Start, a.End = 10, 19
	u.do(a)
	test := lockOf(o, posix, 2, unix.F_RDLCK)
	test.Test = true
	got := u.do(test).GetLock()
	if got.GetType() != unix.F_WRLCK || got.GetStart() != 10 || got.GetEnd() != 19 || got.GetPid() != 1001 {
		t.Errorf("got %v", got)
	}
	test = lockOf(o, posix, 2, unix.F_WRLCK)
	test.Test, test.Start, test.End = true, 20, 30
	if got := u.do(test).GetLock(); got.GetType() != unix.F_UNLCK {
		t.Errorf("got %v", got)
	}
	part := lockOf(o, posix, 1, unix.F_UNLCK)
	part.Start, part.End = 12, 15
	u.do(part)
	mid := lockOf(o, posix, 2, unix.F_WRLCK)
	mid.Start, mid.End = 12, 15
	u.do(mid)
	u.do(&volumev1.Commit{Open: o, Kind: volumev1.CommitKind_COMMIT_KIND_FLUSH, LockOwner: 1, Unlock: true})
	u.fails(lockOf(o, posix, 3, unix.F_WRLCK), syscall.EAGAIN) // owner 2 has the middle
	u.do(&volumev1.Commit{Open: o, Kind: volumev1.CommitKind_COMMIT_KIND_FLUSH, LockOwner: 2, Unlock: true})
	u.do(lockOf(o, posix, 3, unix.F_WRLCK))

	bad := lockOf(o, posix, 1, unix.F_WRLCK)
	bad.Start, bad.End = 5, 4
	u.fails(bad, syscall.EINVAL)
	u.fails(lockOf(o, posix, 1, 9), syscall.EINVAL)
	u.fails(lockOf(o, 0, 1, unix.F_WRLCK), syscall.EINVAL)
	u.fails(lockOf(o+99, posix, 1, unix.F_WRLCK), syscall.EBADF)
}

func TestLockWaits(t *testing.T) {
	_, u := oneUser(t)
	o := u.create("f").GetOpen()
	for _, kind := range []volumev1.LockKind{posix, flock} {
		u.do(lockOf(o, kind, 1, unix.F_WRLCK))

		wait := lockOf(o, kind, 2, unix.F_WRLCK)
		wait.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := u.c.Do(ctx, request(wait)); err != syscall.EINTR {
			t.Errorf("%v: a cancelled wait gave %v, want EINTR", kind, err)
		}
		cancel()

		wait = lockOf(o, kind, 3, unix.F_WRLCK)
		wait.Wait = true
		granted := make(chan error, 1)
		go func() {
			_, err := u.c.Do(t.Context(), request(wait))
			granted <- err
		}()
		select {
		case err := <-granted:
			t.Fatalf("%v: granted over another's lock: %v", kind, err)
		case <-time.After(30 * time.Millisecond):
		}
		u.do(lockOf(o, kind, 1, unix.F_UNLCK))
		if err := <-granted; err != nil {
			t.Errorf("%v: got %v", kind, err)
		}
		u.do(lockOf(o, kind, 3, unix.F_UNLCK))
	}
}
