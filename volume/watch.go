package volume

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/internal/logging"
)

const (
	// maxWatches bounds the directories that a volume watches; those used least
	// recently give way.
	maxWatches = 8192
	// mergeFor is how long events wait for others on the same name.
	mergeFor = 2 * time.Millisecond
	// maxRead holds some hundred events of inotify(7).
	maxRead = 1 << 16
	// maxBatches is how many reads may wait for the event delay; then the kernel
	// queues, and overflows, which is an event too.
	maxBatches = 1024
)

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_MODIFY | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

const nameMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO

// watcher turns what others do to a volume's directories into events. Where the
// kernel gives no inotify instance, it watches nothing and on is false.
//
// inotify tells of a directory's names and of changes made through them. It is
// blind to a write through another hard link and to stores into a mapping; the
// sweep of a barrier finds those.
type watcher struct {
	v     *volume
	delay time.Duration
	on    bool

	in      *os.File
	fd      int
	cookies cookieDir
	batches chan batch
	stop    chan struct{}
	wg      sync.WaitGroup
	// missed: since the last sweep a directory in use was not watched.
	missed atomic.Bool

	mu       sync.Mutex
	watches  map[int32]*watch
	used     *list.List // of *watch, latest first
	limit    int
	cookieWD int32
	made     uint64
	waiting  map[string]chan struct{}
	overflow chan struct{} // closed at the next queue overflow
}

type watch struct {
	wd   int32
	dir  *object
	used *list.Element
}

// batch is what one read brought.
type batch struct {
	at     time.Time
	events []rawEvent
}

type rawEvent struct {
	wd   int32
	mask uint32
	name string
}

func newWatcher(v *volume, o ServerOptions) *watcher {
	w := &watcher{
		v: v, delay: o.EventDelay, stop: make(chan struct{}), batches: make(chan batch, maxBatches),
		watches: map[int32]*watch{}, used: list.New(), limit: maxWatches,
		waiting: map[string]chan struct{}{}, overflow: make(chan struct{}),
	}
	if err := w.open(); err != nil {
		v.log.Warn("volume has no watch", "volume", v.name, logging.Err, err)
		return w
	}
	w.on = true
	w.wg.Go(w.read)
	w.wg.Go(w.process)
	return w
}

func (w *watcher) open() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make an inotify instance (see fs.inotify.max_user_instances): %w", err)
	}
	w.fd, w.in = fd, os.NewFile(uintptr(fd), "inotify")
	if w.cookies, err = newCookieDir(); err != nil {
		w.in.Close()
		return err
	}
	wd, err := unix.InotifyAddWatch(fd, w.cookies.path, unix.IN_CREATE|unix.IN_ONLYDIR)
	if err != nil {
		w.in.Close()
		w.cookies.remove()
		return fmt.Errorf("watch the cookies: %w", err)
	}
	w.cookieWD = int32(wd)
	return nil
}

func (w *watcher) close() {
	if !w.on {
		return
	}
	close(w.stop)
	w.in.Close()
	w.wg.Wait()
	w.cookies.remove()
}

// ensure watches a directory, that fd is open on, and reports whether it did not
// before: what was known of it may then be old.
func (w *watcher) ensure(dir *object, fd int) (added bool) {
	if !w.on {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()

	if dir.watched != nil {
		w.used.MoveToFront(dir.watched.used)
		return false
	}
	for len(w.watches) >= w.limit {
		w.evictLocked()
	}
	wd, err := unix.InotifyAddWatch(w.fd, procPath(fd), watchMask)
	if err == unix.ENOSPC && len(w.watches) > 0 {
		w.evictLocked()
		wd, err = unix.InotifyAddWatch(w.fd, procPath(fd), watchMask)
	}
	if err != nil {
		w.missed.Store(true)
		return false
	}
	if old := w.watches[int32(wd)]; old != nil { // the same inode, as an object of before
		w.removeLocked(old)
	}
	dir.watched = &watch{wd: int32(wd), dir: dir}
	dir.watched.used = w.used.PushFront(dir.watched)
	w.watches[int32(wd)] = dir.watched
	return true
}

func (w *watcher) evictLocked() {
	old := w.used.Back().Value.(*watch)
	w.removeLocked(old)
	unix.InotifyRmWatch(w.fd, uint32(old.wd))
	w.missed.Store(true)
}

func (w *watcher) removeLocked(old *watch) {
	delete(w.watches, old.wd)
	w.used.Remove(old.used)
	old.dir.watched = nil
}

// forget ends the watch of an object that left the table.
func (w *watcher) forget(dir *object) {
	if !dir.isDir() || !w.on {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := dir.watched; old != nil {
		w.removeLocked(old)
		unix.InotifyRmWatch(w.fd, uint32(old.wd))
	}
}

// watches tells whether changes in a directory make events now.
func (w *watcher) covers(dir *object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return dir != nil && dir.watched != nil
}

// read hands on what the kernel tells until close.
func (w *watcher) read() {
	defer close(w.batches)
	buf := make([]byte, maxRead)
	for {
		n, err := w.in.Read(buf)
		if err != nil {
			return
		}
		select {
		case w.batches <- batch{time.Now(), parseEvents(buf[:n])}:
		case <-w.stop:
			return
		}
	}
}

// parseEvents reads the structs of inotify(7).
func parseEvents(b []byte) []rawEvent {
	var out []rawEvent
	for len(b) >= unix.SizeofInotifyEvent {
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if size > len(b) {
			return out
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:size]), "\x00")
		out = append(out, rawEvent{
			wd:   int32(binary.NativeEndian.Uint32(b)),
			mask: binary.NativeEndian.Uint32(b[4:]),
			name: name,
		})
		b = b[size:]
	}
	return out
}

// process makes events of what read brings, some milliseconds of it at a time.
func (w *watcher) process() {
	for first := range w.batches {
		all := first.events
		// A barrier that waits is not held up by the merging.
		if !w.hasCookie(all) {
			w.sleepUntil(first.at.Add(mergeFor))
		}
		w.sleepUntil(first.at.Add(w.delay))
		for w.delay == 0 && len(all) < maxEventsPerFrame {
			more, ok := w.next()
			if !ok {
				break
			}
			all = append(all, more.events...)
		}
		w.apply(all)
	}
}

// next returns a batch that is there already.
func (w *watcher) next() (batch, bool) {
	select {
	case b, ok := <-w.batches:
		return b, ok
	default:
		return batch{}, false
	}
}

func (w *watcher) hasCookie(events []rawEvent) bool {
	for _, e := range events {
		if e.wd == w.cookieWD {
			return true
		}
	}
	return false
}

func (w *watcher) sleepUntil(t time.Time) {
	d := time.Until(t)
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.stop:
	}
}

// cookie returns when everything that happened to watched directories before the
// call has its event, or was told as lost.
func (w *watcher) cookie(done <-chan struct{}) error {
	for {
		w.mu.Lock()
		w.made++
		name := strconv.FormatUint(w.made, 10)
		seen := make(chan struct{})
		w.waiting[name] = seen
		overflow := w.overflow
		w.mu.Unlock()

		path := filepath.Join(w.cookies.path, name)
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(fd)
			unix.Unlink(path)
			select {
			case <-seen:
				return nil
			case <-overflow: // the cookie's event may be among the lost: another one
				continue
			case <-w.stop:
				err = os.ErrClosed
			case <-done:
				err = os.ErrDeadlineExceeded
			}
		}
		w.mu.Lock()
		delete(w.waiting, name)
		w.mu.Unlock()
		return fmt.Errorf("wait for a cookie: %w", err)
	}
}
