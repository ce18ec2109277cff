package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/yaoapp/sbgw/workspace"
)

// The two ways in which the id of a new box is taken: another call is creating it
// now, or it is there.
var (
	errCreating = fmt.Errorf("%w: it is being created", ErrConflict)
	errExists   = fmt.Errorf("%w: a box of this id exists", ErrConflict)
)

// Create makes a box and starts it: all or nothing. An id that is taken is
// ErrConflict.
func (m *Manager) Create(ctx context.Context, opts CreateOptions) (*Box, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	if opts.ID == "" {
		opts.ID = workspace.NewID("sb")
	}
	b, err := m.create(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("create box %s: %w", opts.ID, err)
	}
	return b, nil
}

func (m *Manager) create(ctx context.Context, opts CreateOptions) (*Box, error) {
	if err := checkOptions(&opts); err != nil {
		return nil, err
	}
	p, err := m.placeFor(ctx, &opts)
	if err != nil {
		return nil, err
	}
	r := newRecord(opts, p)
	if err := m.reserve(r, p.conf); err != nil {
		return nil, err
	}
	if err := m.build(ctx, p, r, opts); err != nil {
		m.forget(r)
		return nil, err
	}
	m.mu.Lock()
	r.creating = false
	r.seen = true
	m.mu.Unlock()
	m.log.Info("box created", "box", r.ID, "pool", r.Pool, "workspace", r.volume())
	return &Box{m: m, r: r}, nil
}

func newRecord(opts CreateOptions, p *pool) *record {
	r := &record{
		ID: BoxID(opts.ID), Owner: Owner(opts.Owner), Pool: p.name(), Policy: opts.Policy,
		Workspace: WorkspaceID(opts.WorkspaceID), Labels: maps.Clone(opts.Labels), Image: opts.Image,
		CreatedAt: time.Now().UTC(), IdleTimeout: p.conf.IdleTimeout, StopTimeout: p.conf.StopTimeout,
		VNC: opts.VNC, creating: true, lastActive: time.Now(),
	}
	if opts.IdleTimeout != 0 {
		r.IdleTimeout = opts.IdleTimeout
	}
	if opts.StopTimeout != 0 {
		r.StopTimeout = opts.StopTimeout
	}
	return r
}

// placeFor finds the pool of a new box: a workspace is bound to one, else it is
// the one asked for.
func (m *Manager) placeFor(ctx context.Context, opts *CreateOptions) (*pool, error) {
	if opts.WorkspaceID == "" {
		return m.pool(opts.Pool)
	}
	m.mu.Lock()
	wm := m.workspaces
	m.mu.Unlock()
	if wm == nil {
		return nil, Unsupported("workspaces")
	}
	w, err := wm.Get(ctx, WorkspaceID(opts.WorkspaceID))
	if err != nil {
		return nil, err
	}
	if opts.Owner != "" && w.Owner != "" && w.Owner != Owner(opts.Owner) {
		return nil, fmt.Errorf("%w: workspace %s", ErrNotFound, w.ID)
	}
	if opts.Pool != "" && PoolName(opts.Pool) != w.Pool {
		return nil, Invalid("workspace %s is on pool %s, not on %s", w.ID, w.Pool, opts.Pool)
	}
	return m.pool(string(w.Pool))
}

// reserve is the one admission: it takes the box's id and its place under the
// pool's limits before anything is asked of the backend, so that concurrent
// creates never pass a limit together.
func (m *Manager) reserve(r *record, p Pool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.boxes[r.ID]; old != nil {
		if old.creating {
			return errCreating
		}
		return errExists
	}
	total, own := 0, 0
	for _, other := range m.boxes {
		if other.Pool != r.Pool {
			continue
		}
		total++
		if other.Owner == r.Owner {
			own++
		}
	}
	if p.MaxTotal > 0 && total >= p.MaxTotal {
		return fmt.Errorf("%w: pool %s has its %d boxes (max_total)", ErrLimitExceeded, p.Name, p.MaxTotal)
	}
	if p.MaxPerUser > 0 && r.Owner != "" && own >= p.MaxPerUser {
		return fmt.Errorf("%w: owner %s has %d boxes on pool %s (max_per_user)", ErrLimitExceeded, r.Owner, p.MaxPerUser, p.Name)
	}
	m.boxes[r.ID] = r
	return nil
}

// undoTime bounds the clean-up of a create that failed.
const undoTime = 30 * time.Second

// build makes volume, mount and box, or nothing.
func (m *Manager) build(ctx context.Context, p *pool, r *record, opts CreateOptions) (err error) {
	b, err := p.get()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			m.unbuild(undo, b, r)
		}
	}()
	mounts, err := m.openVolume(ctx, b, r, opts)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		if err := m.settle(ctx, r); err != nil {
			return err
		}
	}
	state, err := b.Create(ctx, boxSpec(r, opts, mounts, r.managedLabels(m.gateway)))
	if err != nil {
		return err
	}
	r.setState(state)
	if err := m.saveRecord(r); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// openVolume makes the box's own volume or finds its workspace's, and mounts it.
func (m *Manager) openVolume(ctx context.Context, b Backend, r *record, opts CreateOptions) ([]VolumeMount, error) {
	v, err := Has[VolumeOpener](ctx, b, AbilityVolume)
	if errors.Is(err, ErrUnsupported) && r.Workspace == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e, err := v.OpenVolume(ctx, VolumeSession(r.volume()), r.Workspace == "")
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", r.volume(), err)
	}
	if _, err := m.attach(ctx, r.volume(), r.Pool, e); err != nil {
		return nil, err
	}
	return []VolumeMount{{Session: VolumeSession(r.volume()), Target: opts.MountPath, ReadOnly: opts.MountMode == "ro"}}, nil
}

// unbuild takes back what build made. Its errors are logged: the create has one
// to return already.
func (m *Manager) unbuild(ctx context.Context, b Backend, r *record) {
	// Also after a lost answer: the box may be there.
	if err := b.Remove(ctx, BoxRef{ID: r.ID}); err != nil {
		m.log.Warn("undo create", "box", r.ID, "err", err)
		return
	}
	m.dropVolume(ctx, b, r)
}

func boxSpec(r *record, opts CreateOptions, mounts []VolumeMount, labels map[string]string) BoxSpec {
	env := make([]string, 0, len(opts.Env))
	for _, k := range slices.Sorted(maps.Keys(opts.Env)) {
		env = append(env, k+"="+opts.Env[k])
	}
	return BoxSpec{
		ID: r.ID, Image: opts.Image, Env: env, WorkDir: opts.WorkDir, User: opts.User, Memory: opts.Memory,
		CPUs: opts.CPUs, VNC: opts.VNC, Ports: opts.Ports, Mounts: mounts, Labels: labels,
	}
}

// checkOptions fills defaults in and refuses what can't work.
func checkOptions(o *CreateOptions) error {
	if err := workspace.CheckID(o.ID); err != nil {
		return err
	}
	if o.Image == "" {
		return Invalid("no image given")
	}
	if o.WorkDir == "" {
		o.WorkDir = DefaultWorkDir
	}
	if o.MountPath == "" {
		o.MountPath = DefaultWorkDir
	}
	for _, dir := range []string{o.WorkDir, o.MountPath} {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
			return Invalid("directory %q: give an absolute path without . and .., not /", dir)
		}
	}
	if o.MountMode != "" && o.MountMode != "rw" && o.MountMode != "ro" {
		return Invalid("mount mode %q: use rw or ro", o.MountMode)
	}
	if o.Memory < 0 || o.CPUs < 0 || o.IdleTimeout < 0 || o.StopTimeout < 0 {
		return Invalid("memory, cpus and timeouts can't be negative")
	}
	policy, err := parsePolicy(string(o.Policy))
	if err != nil {
		return err
	}
	o.Policy = policy
	for k := range o.Labels {
		if strings.HasPrefix(k, "sbgw.") {
			return Invalid("label %q: names beginning with sbgw. are the gateway's own", k)
		}
	}
	return checkEnv(o.Env)
}

// parsePolicy accepts the present names and those with hyphens of the first
// version; empty is Session.
func parsePolicy(s string) (LifecyclePolicy, error) {
	switch p := LifecyclePolicy(strings.ReplaceAll(s, "-", "")); p {
	case "":
		return Session, nil
	case OneShot, Session, LongRunning, Persistent:
		return p, nil
	}
	return "", Invalid("policy %q: use oneshot, session, longrunning or persistent", s)
}

func checkEnv(env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return Invalid("environment variable name %q: it can't be empty or have '=' or NUL", k)
		}
		if strings.Contains(v, "\x00") {
			return Invalid("environment variable %s: its value has a NUL", k)
		}
	}
	return nil
}

// userLabels are a box's labels without the gateway's own.
func userLabels(all map[string]string) map[string]string {
	labels := make(map[string]string)
	for k, v := range all {
		if !strings.HasPrefix(k, "sbgw.") {
			labels[k] = v
		}
	}
	return labels
}
