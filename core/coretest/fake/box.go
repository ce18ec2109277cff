package fake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/yaoapp/sbgw/core"
)

// Create implements core.Backend.
func (b *Backend) Create(ctx context.Context, s core.BoxSpec) (core.BoxState, error) {
	switch {
	case s.Image != Image:
		return core.BoxState{}, core.Invalid("there is no image %q", s.Image)
	case len(s.Ports) > 0:
		return core.BoxState{}, core.Unsupported("ports")
	case s.VNC:
		return core.BoxState{}, core.Unsupported("vnc")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.boxes[s.ID]; x != nil {
		if !sameSpec(x.Spec, s) {
			return core.BoxState{}, fmt.Errorf("%w: box %s is there with another specification", core.ErrConflict, s.ID)
		}
		return x.State, nil
	}
	for _, m := range s.Mounts {
		if _, err := os.Stat(b.volume(m.Session)); err != nil {
			return core.BoxState{}, fmt.Errorf("%w: volume %s", core.ErrNotFound, m.Session)
		}
	}
	x := &box{Spec: s, procs: map[*process]bool{}, State: core.BoxState{
		ID: s.ID, ContainerID: "fake-" + string(s.ID), Status: core.StatusCreated, Image: s.Image,
		Labels: s.Labels, CreatedAt: time.Now(), Network: "host", Mounts: s.Mounts,
	}}
	b.boxes[s.ID] = x
	if s.NotStarted {
		return x.State, b.saveLocked(x)
	}
	if err := b.startLocked(x); err != nil {
		delete(b.boxes, s.ID)
		return core.BoxState{}, err
	}
	return x.State, nil
}

// sameSpec compares as JSON, where nothing and emptiness are written alike once
// both went through the same wire.
func sameSpec(a, b core.BoxSpec) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// startLocked begins a new incarnation.
func (b *Backend) startLocked(x *box) error {
	x.State.Incarnation = core.Incarnation(rand.Text())
	x.State.Status, x.State.Reason, x.State.ExitCode = core.StatusRunning, "", nil
	x.State.StartedAt, x.State.FinishedAt = time.Now(), time.Time{}
	if len(x.Spec.Cmd) > 0 {
		p, err := b.spawn(x, core.ExecSpec{Cmd: x.Spec.Cmd})
		if err != nil {
			return err
		}
		x.main = p
		go b.follow(x, p, x.State.Incarnation)
	}
	return b.saveLocked(x)
}

// follow ends an incarnation with its main process.
func (b *Backend) follow(x *box, p *process, in core.Incarnation) {
	go io.Copy(io.Discard, p.Stdout())
	go io.Copy(io.Discard, p.Stderr())
	exit, err := p.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if x.State.Incarnation != in || x.State.Status != core.StatusRunning {
		return
	}
	x.State.Status, x.State.Reason, x.State.FinishedAt = core.StatusStopped, exit.Reason, time.Now()
	if err == nil {
		x.State.ExitCode = &exit.Code
	}
	b.killLocked(x)
	b.saveLocked(x)
}

// find returns a box after checking the incarnation.
func (b *Backend) findLocked(r core.BoxRef) (*box, error) {
	x := b.boxes[r.ID]
	if x == nil {
		return nil, fmt.Errorf("%w: box %s", core.ErrNotFound, r.ID)
	}
	if r.Incarnation != "" && r.Incarnation != x.State.Incarnation {
		return nil, fmt.Errorf("%w: box %s is another incarnation by now", core.ErrConflict, r.ID)
	}
	return x, nil
}

// Start implements core.Backend.
func (b *Backend) Start(_ context.Context, r core.BoxRef) (core.BoxState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x, err := b.findLocked(r)
	if err == nil && x.State.Status != core.StatusRunning {
		err = b.startLocked(x)
	}
	if err != nil {
		return core.BoxState{}, err
	}
	return x.State, nil
}

// Stop implements core.Backend. Nothing here deserves a grace period.
func (b *Backend) Stop(_ context.Context, r core.BoxRef, _ time.Duration) (core.BoxState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x, err := b.findLocked(r)
	if err != nil {
		return core.BoxState{}, err
	}
	if x.State.Status == core.StatusRunning {
		x.State.Status, x.State.Reason, x.State.FinishedAt = core.StatusStopped, core.ReasonKilled, time.Now()
		b.killLocked(x)
		err = b.saveLocked(x)
	}
	return x.State, err
}

func (b *Backend) killLocked(x *box) {
	if x.main != nil {
		x.main.Signal(int(syscall.SIGKILL), true)
		x.main = nil
	}
	for p := range x.procs {
		p.Signal(int(syscall.SIGKILL), true)
	}
}

// Remove implements core.Backend.
func (b *Backend) Remove(_ context.Context, r core.BoxRef) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.boxes[r.ID] == nil {
		return nil
	}
	x, err := b.findLocked(r)
	if err != nil {
		return err
	}
	x.State.Status = core.StatusStopped
	b.killLocked(x)
	delete(b.boxes, r.ID)
	b.tellLocked(core.BoxEvent{Removed: r.ID})
	return os.Remove(b.record(r.ID))
}

// Inspect implements core.Backend.
func (b *Backend) Inspect(_ context.Context, id core.BoxID) (core.BoxState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x, err := b.findLocked(core.BoxRef{ID: id})
	if err != nil {
		return core.BoxState{}, err
	}
	return stateLocked(x), nil
}

// List implements core.Backend.
func (b *Backend) List(context.Context) ([]core.BoxState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []core.BoxState
	for _, x := range b.boxes {
		all = append(all, stateLocked(x))
	}
	return all, nil
}

func stateLocked(x *box) core.BoxState {
	st := x.State
	st.Execs = len(x.procs)
	st.Processes = len(x.procs)
	return st
}

func (b *Backend) volume(s core.VolumeSession) string {
	return filepath.Join(b.dir, "volumes", string(s))
}

func isName(s core.VolumeSession) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(string(s), "/\x00")
}

// OpenVolume implements core.VolumeOpener.
func (b *Backend) OpenVolume(_ context.Context, s core.VolumeSession, create bool) (core.Endpoint, error) {
	if !isName(s) {
		return core.Endpoint{}, core.Invalid("volume %q", s)
	}
	dir := b.volume(s)
	if create {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return core.Endpoint{}, err
		}
	}
	st, err := os.Stat(dir)
	if err != nil {
		return core.Endpoint{}, fmt.Errorf("%w: volume %s", core.ErrNotFound, s)
	}
	ino := st.Sys().(*syscall.Stat_t).Ino
	return core.Endpoint{Kind: core.EndpointDir, Address: dir, Session: s, Instance: fmt.Sprint(ino)}, nil
}

// RemoveVolume implements core.VolumeRemover.
func (b *Backend) RemoveVolume(_ context.Context, s core.VolumeSession) error {
	if !isName(s) {
		return core.Invalid("volume %q", s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, x := range b.boxes {
		for _, m := range x.Spec.Mounts {
			if m.Session == s {
				return fmt.Errorf("%w: volume %s is bound to box %s", core.ErrConflict, s, id)
			}
		}
	}
	return os.RemoveAll(b.volume(s))
}
