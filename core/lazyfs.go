package core

import (
	"io/fs"
	"sync"

	"github.com/yaoapp/sbgw/workspace"
)

// lazyFS connects at the first use, and again after an attempt that failed.
type lazyFS struct {
	open func() (workspace.FS, error)

	mu     sync.Mutex
	fs     workspace.FS
	closed bool
}

func (l *lazyFS) get(op, name string) (workspace.FS, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrClosed}
	}
	if l.fs == nil {
		f, err := l.open()
		if err != nil {
			return nil, &fs.PathError{Op: op, Path: name, Err: err}
		}
		l.fs = f
	}
	return l.fs, nil
}

func (l *lazyFS) Open(name string) (fs.File, error) {
	f, err := l.get("open", name)
	if err != nil {
		return nil, err
	}
	return f.Open(name)
}

func (l *lazyFS) Stat(name string) (fs.FileInfo, error) {
	f, err := l.get("stat", name)
	if err != nil {
		return nil, err
	}
	return f.Stat(name)
}

func (l *lazyFS) ReadFile(name string) ([]byte, error) {
	f, err := l.get("read", name)
	if err != nil {
		return nil, err
	}
	return f.ReadFile(name)
}

func (l *lazyFS) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := l.get("readdir", name)
	if err != nil {
		return nil, err
	}
	return f.ReadDir(name)
}

func (l *lazyFS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	f, err := l.get("write", name)
	if err != nil {
		return err
	}
	return f.WriteFile(name, data, perm)
}

func (l *lazyFS) Remove(name string) error {
	f, err := l.get("remove", name)
	if err != nil {
		return err
	}
	return f.Remove(name)
}

func (l *lazyFS) RemoveAll(name string) error {
	f, err := l.get("remove", name)
	if err != nil {
		return err
	}
	return f.RemoveAll(name)
}

func (l *lazyFS) Rename(oldName, newName string) error {
	f, err := l.get("rename", oldName)
	if err != nil {
		return err
	}
	return f.Rename(oldName, newName)
}

func (l *lazyFS) MkdirAll(name string, perm fs.FileMode) error {
	f, err := l.get("mkdir", name)
	if err != nil {
		return err
	}
	return f.MkdirAll(name, perm)
}

func (l *lazyFS) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.fs == nil {
		return nil
	}
	return l.fs.Close()
}
