package volume

import (
	"golang.org/x/sys/unix"
)

// nameKey is a name that something happened to.
type nameKey struct {
	dir  *object
	name string
}

// changes is a batch of kernel events, merged by name.
type changes struct {
	names   map[nameKey]uint32
	order   []nameKey
	selves  map[*object]bool
	cookies []string
	lost    bool
}

// apply makes our events of the kernel's.
func (w *watcher) apply(events []rawEvent) {
	c := w.merge(events)
	dirs := map[*object]*file{}
	for _, k := range c.order {
		f, ok := dirs[k.dir]
		if !ok {
			f, _ = w.v.pin(k.dir)
			dirs[k.dir] = f
		}
		if c.names[k]&nameMask != 0 {
			c.selves[k.dir] = true
		}
		if f != nil {
			w.applyName(k, f.fd, c.names[k])
		}
	}
	for _, f := range dirs {
		if f != nil {
			f.drop()
		}
	}
	for dir := range c.selves {
		w.v.check(dir)
	}
	if c.lost {
		w.v.feed.append(event{lost: true})
	}
	w.wake(c)
}

func (w *watcher) merge(events []rawEvent) *changes {
	c := &changes{names: map[nameKey]uint32{}, selves: map[*object]bool{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			c.lost = true
			continue
		}
		if e.wd == w.cookieWD {
			c.cookies = append(c.cookies, e.name)
			continue
		}
		known := w.watches[e.wd]
		switch {
		case known == nil:
		case e.mask&unix.IN_IGNORED != 0:
			w.removeLocked(known)
		case e.name == "":
			c.selves[known.dir] = true
		default:
			k := nameKey{known.dir, e.name}
			if c.names[k] == 0 {
				c.order = append(c.order, k)
			}
			c.names[k] |= e.mask &^ unix.IN_ISDIR
		}
	}
	return c
}

// wake ends the waits for cookies, after the events before them are in the feed.
func (w *watcher) wake(c *changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range c.cookies {
		if seen := w.waiting[name]; seen != nil {
			close(seen)
			delete(w.waiting, name)
		}
	}
	if c.lost {
		close(w.overflow)
		w.overflow = make(chan struct{})
	}
}

// applyName looks at what a name means now and tells what that changes.
func (w *watcher) applyName(k nameKey, dirFD int, mask uint32) {
	v := w.v
	var child *object
	gone := false
	fd, err := openBeneath(dirFD, k.name, unix.O_PATH, 0)
	if err != nil {
		gone = true
	} else {
		f := newFile(fd)
		defer f.drop()
		st, err := statFD(fd)
		if err != nil {
			return
		}
		if child = v.known(f, st); child != nil {
			defer v.release(child)
			defer v.observe(child, st, nil)
		}
	}
	before := v.renamed(k, child, mask&nameMask != 0)
	if mask&nameMask != 0 {
		v.feed.append(event{parent: k.dir, name: k.name, child: child, gone: gone})
	}
	if before != nil {
		v.check(before)
		v.release(before)
	}
}

// renamed returns, held, the other object that the name was last known for. If
// the name has changed it remembers the new one.
func (v *volume) renamed(k nameKey, now *object, changed bool) *object {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := k.dir.children[k.name]
	if before == now {
		before = nil
	}
	if before != nil {
		before.users++
		before.unnameLocked()
	}
	if now != nil && changed && v.handles[k.dir.handle] == k.dir {
		now.nameLocked(k.dir, k.name)
	}
	return before
}

// check looks at an object again and tells the feed if it is another one than
// the sessions know, or gone.
func (v *volume) check(o *object) {
	f, err := v.pin(o)
	if err != nil {
		v.feed.append(event{object: o})
		return
	}
	defer f.drop()
	st, err := statFD(f.fd)
	if err != nil {
		return
	}
	if st.Nlink == 0 && v.buried(o) {
		v.feed.append(event{object: o})
		return
	}
	v.observe(o, st, nil)
}
