package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/yaoapp/sbgw/workspace"
)

// Box is a handle on a box. It stays valid over restarts of the box, its plugin
// and its node; when the box is removed its methods return ErrNotFound. They may
// be called concurrently.
type Box struct {
	m *Manager
	r *record
}

// ID returns the box's id.
func (b *Box) ID() string { return string(b.r.ID) }

// Owner returns who the box belongs to.
func (b *Box) Owner() string { return string(b.r.Owner) }

// Pool returns the name of the box's pool.
func (b *Box) Pool() string { return string(b.r.Pool) }

// WorkspaceID returns the box's workspace; empty for a volume of its own.
func (b *Box) WorkspaceID() string { return string(b.r.Workspace) }

// ContainerID returns the backend's own id of the box.
func (b *Box) ContainerID() string {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return b.r.state.ContainerID
}

// backend returns the box's backend, if the manager is in use and the box there.
func (b *Box) backend() (Backend, error) {
	if err := b.m.begin(); err != nil {
		return nil, err
	}
	b.m.mu.Lock()
	present := b.m.boxes[b.r.ID] == b.r
	b.m.mu.Unlock()
	if !present {
		return nil, fmt.Errorf("%w: box %s", ErrNotFound, b.r.ID)
	}
	return b.m.Backend(b.r.Pool)
}

// Start starts a stopped box; a running one is success. Everything written
// through mounts before is what the box sees.
func (b *Box) Start(ctx context.Context) error {
	if err := b.start(ctx); err != nil {
		return fmt.Errorf("start box %s: %w", b.r.ID, err)
	}
	return nil
}

func (b *Box) start(ctx context.Context) error {
	be, err := b.backend()
	if err != nil {
		return err
	}
	if err := b.m.settle(ctx, b.r); err != nil {
		return err
	}
	s, err := be.Start(ctx, BoxRef{ID: b.r.ID})
	if err != nil {
		return err
	}
	b.r.setState(s)
	b.r.touch(0)
	return nil
}

// Stop sends SIGTERM to the box's main process and after the grace period
// SIGKILL; its files stay. What it wrote is what the mount shows after.
func (b *Box) Stop(ctx context.Context) error {
	if err := b.stop(ctx); err != nil {
		return fmt.Errorf("stop box %s: %w", b.r.ID, err)
	}
	return nil
}

func (b *Box) stop(ctx context.Context) error {
	be, err := b.backend()
	if err != nil {
		return err
	}
	s, err := be.Stop(ctx, BoxRef{ID: b.r.ID}, b.r.StopTimeout)
	if err != nil {
		return err
	}
	b.r.setState(s)
	return b.m.refresh(ctx, b.r, Event{})
}

// Remove kills and deletes the box, and its volume unless that is a workspace.
// While the backend can't be asked, the box stays listed.
func (b *Box) Remove(ctx context.Context) error {
	be, err := b.backend()
	if err != nil {
		return err
	}
	if err := be.Remove(ctx, BoxRef{ID: b.r.ID}); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("remove box %s: %w", b.r.ID, err)
	}
	b.m.dropVolume(ctx, be, b.r)
	b.m.forget(b.r)
	b.m.log.Info("box removed", "box", b.r.ID)
	return nil
}

// Info asks the backend for the box's present state. While it does not answer,
// the status is unknown and the reason says why; that is no error.
func (b *Box) Info(ctx context.Context) (*BoxInfo, error) {
	be, err := b.backend()
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotAvailable) {
		return nil, err
	}
	var s BoxState
	if err == nil {
		s, err = be.Inspect(ctx, b.r.ID)
	}
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("box %s: %w", b.r.ID, err)
	}
	if err != nil {
		i := b.snapshot()
		i.Status, i.Reason = string(StatusUnknown), err.Error()
		return i, nil
	}
	b.r.setState(s)
	return b.snapshot(), nil
}

// Last returns what is known of the box without asking its backend.
func (b *Box) Last() *BoxInfo { return b.snapshot() }

func (b *Box) snapshot() *BoxInfo {
	r := b.r
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	return &BoxInfo{
		ID: string(r.ID), ContainerID: s.ContainerID, Pool: string(r.Pool), Owner: string(r.Owner),
		Status: string(s.Status), Policy: r.Policy, Labels: maps.Clone(r.Labels), Image: r.Image,
		CreatedAt: r.CreatedAt, LastActive: r.lastActive, ProcessCount: s.Processes, VNC: r.VNC,
		Workspace: string(r.volume()), Ports: s.Ports, IP: s.IP, Network: s.Network, Reason: string(s.Reason),
		ExitCode: s.ExitCode, Incarnation: string(s.Incarnation),
	}
}

// Workspace returns the files of the box's volume, by the same server as its
// mount. It connects at the first use; Close it after the last.
func (b *Box) Workspace() workspace.FS {
	return &lazyFS{open: func() (workspace.FS, error) {
		wm, err := b.m.workspaceManager()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(b.m.life, 30*time.Second)
		defer cancel()
		return wm.Open(ctx, workspace.Workspace{ID: b.r.volume(), Owner: b.r.Owner, Pool: b.r.Pool})
	}}
}
