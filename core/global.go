package core

import "sync"

var global struct {
	mu sync.Mutex
	m  *Manager
}

// Init makes the process's one Manager from cfg. Doing it twice is ErrConflict.
func Init(cfg Config) error {
	global.mu.Lock()
	defer global.mu.Unlock()
	if global.m != nil {
		return ErrConflict
	}
	m, err := New(cfg)
	if err != nil {
		return err
	}
	global.m = m
	return nil
}

// M returns the Manager that Init made. It panics if there is none: calling it
// first is a mistake in the program.
func M() *Manager {
	global.mu.Lock()
	defer global.mu.Unlock()
	if global.m == nil {
		panic("sandbox: M called before Init")
	}
	return global.m
}
