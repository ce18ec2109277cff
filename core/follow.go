package core

import (
	"context"
	"errors"
	"time"

	"github.com/yaoapp/sbgw/workspace"
)

// follow keeps a pool's boxes known until the manager closes: it opens the
// backend and watches it, again after every break.
func (m *Manager) follow(p *pool) {
	const first, most = 50 * time.Millisecond, 5 * time.Second
	for delay := first; ; delay = min(2*delay, most) {
		began := time.Now()
		err := m.watch(p)
		if m.life.Err() != nil {
			return
		}
		p.fail(err)
		m.log.Debug("watch of a pool ended", "pool", p.conf.Name, "err", err)
		if time.Since(began) > most {
			delay = first
		}
		select {
		case <-m.life.Done():
			return
		case <-time.After(delay):
		}
	}
}

// fail remembers why the pool is not followed. What only a change of the
// configuration or the installation mends is not waited for, and told once.
func (p *pool) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	if p.backend == nil && (errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported)) {
		select {
		case <-p.refused:
		default:
			close(p.refused)
		}
	}
}

func (m *Manager) watch(p *pool) error {
	b, err := p.get()
	if err != nil {
		if b, err = m.backends.Open(m.life, p.conf); err != nil {
			return err
		}
		p.mu.Lock()
		p.backend = b
		p.mu.Unlock()
	}
	m.unsee(p.name())
	return b.Watch(m.life, "", func(e BoxEvent) error {
		switch {
		case e.State != nil:
			m.observe(p, *e.State)
		case e.Synced:
			m.dropUnseen(p.name())
			p.mu.Lock()
			if !p.known {
				p.known = true
				close(p.synced)
			}
			p.err = nil
			p.mu.Unlock()
		case e.Removed != "":
			m.observeRemoval(p.name(), e.Removed)
		}
		return nil
	})
}

// observe takes in the state of a box; one of ours that is not known is adopted,
// those of other gateways are not ours to touch.
func (m *Manager) observe(p *pool, s BoxState) {
	if s.Labels[LabelGateway] != m.gateway {
		return
	}
	m.mu.Lock()
	r := m.boxes[s.ID]
	adopted := r == nil
	if adopted {
		r = recordOf(s, p)
		m.boxes[s.ID] = r
	}
	r.seen = true
	m.mu.Unlock()
	r.setState(s)
	if !adopted {
		return
	}
	m.log.Info("box found", "box", s.ID, "pool", p.conf.Name)
	if err := m.saveRecord(r); err != nil {
		m.log.Warn("write record of a found box", "box", s.ID, "err", err)
	}
	m.adoptWorkspace(r)
}

// adoptWorkspace makes the record of a workspace that a found box names.
func (m *Manager) adoptWorkspace(r *record) {
	m.mu.Lock()
	wm := m.workspaces
	m.mu.Unlock()
	if wm == nil || r.Workspace == "" {
		return
	}
	w := workspace.Workspace{ID: r.Workspace, Owner: r.Owner, Pool: r.Pool, CreatedAt: r.CreatedAt}
	if err := wm.Adopt(w); err != nil {
		m.log.Warn("write record of a found workspace", "workspace", w.ID, "err", err)
	}
}

func (m *Manager) observeRemoval(pool PoolName, id BoxID) {
	m.mu.Lock()
	r := m.boxes[id]
	gone := r != nil && r.Pool == pool && !r.creating
	m.mu.Unlock()
	if gone {
		m.forget(r)
		m.hideVolume(r)
	}
}

// unsee and dropUnseen bracket a feed's first part: what it does not tell is gone.
func (m *Manager) unsee(pool PoolName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.boxes {
		if r.Pool == pool {
			r.seen = false
		}
	}
}

func (m *Manager) dropUnseen(pool PoolName) {
	m.mu.Lock()
	var gone []*record
	for _, r := range m.boxes {
		if r.Pool == pool && !r.seen && !r.creating {
			gone = append(gone, r)
		}
	}
	m.mu.Unlock()
	for _, r := range gone {
		// A box created while the feed began may not be in it: ask.
		if b, err := m.Backend(pool); err == nil {
			ctx, cancel := context.WithTimeout(m.life, 10*time.Second)
			s, err := b.Inspect(ctx, r.ID)
			cancel()
			if err == nil {
				r.setState(s)
				continue
			}
			if !errors.Is(err, ErrNotFound) {
				continue
			}
		}
		m.log.Info("box is gone", "box", r.ID, "pool", pool)
		m.forget(r)
		m.hideVolume(r)
	}
}
