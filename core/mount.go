package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yaoapp/sbgw/workspace"
)

// mountPoint is where a volume is shown, and where its bytes are.
type mountPoint struct {
	path     string // empty: no Mounter
	pool     PoolName
	endpoint Endpoint
}

// barrierTime is the budget of each side of a barrier.
const barrierTime = 30 * time.Second

// attach shows a volume as a directory and remembers where.
func (m *Manager) attach(ctx context.Context, w WorkspaceID, p PoolName, e Endpoint) (string, error) {
	mp := mountPoint{pool: p, endpoint: e}
	if m.mounts != nil {
		path, err := m.mounts.Attach(ctx, w, e, m.mountOptions)
		if err != nil {
			return "", fmt.Errorf("mount %s: %w", w, err)
		}
		mp.path = path
	}
	m.mu.Lock()
	m.mounted[w] = mp
	m.mu.Unlock()
	return mp.path, nil
}

// Mount shows a workspace under the mount root and returns its path. A mounted
// one is bound again to where its pool says its bytes are.
func (m *Manager) Mount(ctx context.Context, w workspace.Workspace) (string, error) {
	b, err := m.Backend(w.Pool)
	if err != nil {
		return "", err
	}
	v, err := Has[VolumeOpener](ctx, b, AbilityVolume)
	if err != nil {
		return "", err
	}
	e, err := v.OpenVolume(ctx, VolumeSession(w.ID), false)
	if err != nil {
		return "", fmt.Errorf("open volume %s: %w", w.ID, err)
	}
	return m.attach(ctx, w.ID, w.Pool, e)
}

// Unmount takes a workspace's directory away; absent is success.
func (m *Manager) Unmount(ctx context.Context, w WorkspaceID) error {
	if m.mounts != nil {
		if err := m.mounts.Detach(ctx, w); err != nil {
			return fmt.Errorf("unmount %s: %w", w, err)
		}
	}
	m.mu.Lock()
	delete(m.mounted, w)
	m.mu.Unlock()
	return nil
}

// Path returns the local directory of a workspace or a box, if it has one.
func (m *Manager) Path(id string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := WorkspaceID(id)
	if r := m.boxes[BoxID(id)]; r != nil && !r.creating {
		w = r.volume()
	}
	mp, ok := m.mounted[w]
	return mp.path, ok && mp.path != ""
}

// Remount shows every known volume again, after the mount process was replaced.
func (m *Manager) Remount(ctx context.Context) {
	m.mu.Lock()
	pools := m.pools
	m.mu.Unlock()
	for _, p := range pools {
		m.mountAll(ctx, p.name())
	}
}

// mountAll shows every workspace and every box's own volume of a pool.
func (m *Manager) mountAll(ctx context.Context, pool PoolName) {
	for _, w := range m.volumesOf(ctx, pool) {
		if _, err := m.Mount(ctx, w); err != nil {
			m.log.Warn("workspace is not mounted", "workspace", w.ID, "pool", pool, "err", err)
		}
	}
}

func (m *Manager) volumesOf(ctx context.Context, pool PoolName) []workspace.Workspace {
	var all []workspace.Workspace
	m.mu.Lock()
	wm := m.workspaces
	for _, r := range m.boxes {
		if r.Pool == pool && r.Workspace == "" {
			all = append(all, workspace.Workspace{ID: r.volume(), Pool: pool})
		}
	}
	m.mu.Unlock()
	if wm == nil {
		return all
	}
	list, err := wm.List(ctx, workspace.Filter{Pool: pool})
	if err != nil {
		m.log.Warn("workspaces are not readable", "err", err)
	}
	return append(all, list...)
}

// CreateWorkspace makes a workspace and shows it under the mount root.
func (m *Manager) CreateWorkspace(ctx context.Context, o workspace.Options) (workspace.Workspace, error) {
	if err := m.begin(); err != nil {
		return workspace.Workspace{}, err
	}
	wm, err := m.workspaceManager()
	if err != nil {
		return workspace.Workspace{}, err
	}
	w, err := wm.Create(ctx, o)
	if err != nil {
		return workspace.Workspace{}, err
	}
	if _, err := m.Mount(ctx, w); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		return workspace.Workspace{}, errors.Join(err, wm.Delete(undo, w.ID))
	}
	return w, nil
}

// DeleteWorkspace deletes a workspace with all its files. While a box uses it,
// that is ErrConflict and names the box.
func (m *Manager) DeleteWorkspace(ctx context.Context, id WorkspaceID) error {
	wm, err := m.workspaceManager()
	if err != nil {
		return err
	}
	w, err := wm.Get(ctx, id)
	if err != nil {
		return err
	}
	if users := m.boxesOf(id); len(users) > 0 {
		return fmt.Errorf("delete workspace %s: %w: box %s uses it; remove the box first", id, ErrConflict, users[0])
	}
	if err := m.Unmount(ctx, id); err != nil {
		return err
	}
	if err := wm.Delete(ctx, id); err != nil {
		if _, merr := m.Mount(context.WithoutCancel(ctx), w); merr != nil {
			m.log.Warn("workspace is not mounted", "workspace", id, "err", merr)
		}
		return err
	}
	return nil
}

func (m *Manager) workspaceManager() (*workspace.Manager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.workspaces == nil {
		return nil, Unsupported("workspaces")
	}
	return m.workspaces, nil
}

// boxesOf lists the boxes that use a workspace.
func (m *Manager) boxesOf(w WorkspaceID) []BoxID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []BoxID
	for _, r := range m.boxes {
		if r.Workspace == w {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// hideVolume takes away the mount of a box that went without being asked to. Its
// files stay: nothing of ours deletes what nobody said to delete.
func (m *Manager) hideVolume(r *record) {
	if r.Workspace != "" {
		return
	}
	ctx, cancel := context.WithTimeout(m.life, undoTime)
	defer cancel()
	if err := m.Unmount(ctx, r.volume()); err != nil {
		m.log.Warn("unmount volume of a box that is gone", "box", r.ID, "err", err)
	}
}

// dropVolume deletes a box's own volume with its mount; a workspace stays.
func (m *Manager) dropVolume(ctx context.Context, b Backend, r *record) {
	if r.Workspace != "" {
		return
	}
	if err := m.Unmount(ctx, r.volume()); err != nil {
		m.log.Warn("unmount volume of a removed box", "box", r.ID, "err", err)
	}
	v, err := Has[VolumeRemover](ctx, b, AbilityVolumeRemoval)
	if err == nil {
		err = v.RemoveVolume(ctx, VolumeSession(r.volume()))
	}
	if err != nil && !errors.Is(err, ErrUnsupported) {
		m.log.Warn("remove volume of a removed box", "box", r.ID, "err", err)
	}
}

// mountOf returns where a box's volume is shown.
func (m *Manager) mountOf(r *record) (mountPoint, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mp, ok := m.mounted[r.volume()]
	return mp, ok
}

// settle is the first half of the exec order: what was written through mounts is
// where the box will see it. An error means that nothing was started.
func (m *Manager) settle(ctx context.Context, r *record) error {
	mp, ok := m.mountOf(r)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	if m.mounts != nil {
		if err := m.mounts.Settle(ctx, r.volume()); err != nil {
			return fmt.Errorf("%w: settle %s: %w", ErrBarrier, r.volume(), err)
		}
	}
	if m.volumes != nil {
		if err := m.volumes.Recall(ctx, r.volume(), mp.endpoint); err != nil {
			return fmt.Errorf("%w: recall %s: %w", ErrBarrier, r.volume(), err)
		}
	}
	return nil
}

// refresh is the second half: what the box changed before e, or before now where
// the backend told no event, is what the mount shows.
func (m *Manager) refresh(ctx context.Context, r *record, e Event) error {
	mp, ok := m.mountOf(r)
	if !ok || m.mounts == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	if e == (Event{}) && m.volumes != nil {
		var err error
		if e, err = m.volumes.Barrier(ctx, r.volume(), mp.endpoint); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrBarrier, r.volume(), err)
		}
	}
	if err := m.mounts.Refresh(ctx, r.volume(), e); err != nil {
		return fmt.Errorf("%w: refresh %s: %w", ErrBarrier, r.volume(), err)
	}
	return nil
}
