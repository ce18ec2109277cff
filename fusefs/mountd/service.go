package mountd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	mountv1 "github.com/yaoapp/sbgw/proto/sbgw/mount/v1"
)

// service is sbgw.mount.v1. Lock order: a slot's mu, then service.mu.
type service struct {
	mountv1.UnimplementedMountServiceServer

	conf  Config
	log   *slog.Logger
	root  *mountRoot
	fds   *fdServer
	local *localVolumes
	stop  context.CancelFunc
	wg    sync.WaitGroup // ends of detached mounts

	mu     sync.Mutex
	slots  map[string]*slot
	ending bool
}

// slot is the place of one workspace. mu lets one attach or detach run at a
// time; mount is read with service.mu and changed with both.
type slot struct {
	mu    sync.Mutex
	mount *mount
}

func newService(c Config, log *slog.Logger, root *mountRoot, stop context.CancelFunc) *service {
	return &service{conf: c, log: log, root: root, fds: newFDServer(), local: newLocalVolumes(log), stop: stop, slots: map[string]*slot{}}
}

// Info tells who answers.
func (s *service) Info(context.Context, *mountv1.InfoRequest) (*mountv1.InfoResponse, error) {
	return &mountv1.InfoResponse{Pid: int64(os.Getpid()), Version: s.conf.Version, Root: s.root.path}, nil
}

// Attach mounts, or binds again.
func (s *service) Attach(ctx context.Context, r *mountv1.AttachRequest) (*mountv1.AttachResponse, error) {
	path, err := s.attach(ctx, r.GetWorkspace(), boxpb.ToEndpoint(r.GetEndpoint()), r.GetOptions())
	if err != nil {
		return nil, grpcerr.To(fmt.Errorf("mount %s: %w", r.GetWorkspace(), err))
	}
	return &mountv1.AttachResponse{Path: path}, nil
}

func (s *service) attach(ctx context.Context, w string, e core.Endpoint, o *mountv1.MountOptions) (string, error) {
	if err := checkWorkspace(w); err != nil {
		return "", err
	}
	set, err := s.settings(o, e)
	if err != nil {
		return "", err
	}
	sl, err := s.slot(w)
	if err != nil {
		return "", err
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if m := sl.mount; m != nil {
		switch {
		case m.alive() && m.same(e, set):
			return m.path, nil
		case m.alive() && m.rebindable(e, set):
			return m.path, m.rebind(ctx, e)
		}
		if err := s.take(ctx, sl); err != nil {
			return "", err
		}
	}
	if err := s.local.add(e); err != nil {
		return "", err
	}
	m, err := s.newMount(ctx, w, e, set)
	if err != nil {
		s.local.remove(e)
		return "", err
	}
	s.mu.Lock()
	sl.mount = m
	s.mu.Unlock()
	if !m.bind {
		s.fds.keep(w, m.kernel.fd)
	}
	m.log.Info("mounted", logging.Path, m.path)
	return m.path, nil
}

// alive tells whether the kernel still has the mount, as far as we know: somebody
// may have unmounted it.
func (m *mount) alive() bool {
	if m.bind {
		return true
	}
	select {
	case <-m.served:
		return false
	default:
		return true
	}
}

func (s *service) slot(w string) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil, fmt.Errorf("%w: the mount process is ending", core.ErrUnavailable)
	}
	sl := s.slots[w]
	if sl == nil {
		sl = &slot{}
		s.slots[w] = sl
	}
	return sl, nil
}

func checkWorkspace(w string) error {
	if w == "" || len(w) > 255 || w[0] == '.' || strings.ContainsAny(w, "/\x00") {
		return core.Invalid("workspace %q: it must be a file name that does not begin with a dot", w)
	}
	return nil
}

func (s *service) settings(o *mountv1.MountOptions, e core.Endpoint) (settings, error) {
	set := settings{
		symlinks: fusefs.Symlinks(o.GetSymlinks()), uid: o.GetUid(), gid: o.GetGid(),
		allowOther: s.conf.AllowOther || o.GetAllowOther(), readOnly: o.GetReadOnly() || e.ReadOnly,
	}
	switch set.symlinks {
	case "":
		set.symlinks = fusefs.SymlinksContain
	case fusefs.SymlinksContain, fusefs.SymlinksRaw, fusefs.SymlinksNoFollow:
	default:
		return settings{}, core.Invalid("symlinks %q: use contain, raw or nofollow", o.GetSymlinks())
	}
	switch o.GetOwner() {
	case "", "squash":
		set.squash = true
	case "none":
	default:
		return settings{}, core.Invalid("owner %q: use squash or none", o.GetOwner())
	}
	return set, nil
}

// Detach unmounts.
func (s *service) Detach(ctx context.Context, r *mountv1.DetachRequest) (*mountv1.DetachResponse, error) {
	s.mu.Lock()
	sl := s.slots[r.GetWorkspace()]
	s.mu.Unlock()
	if sl == nil {
		return &mountv1.DetachResponse{}, nil
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if err := s.take(ctx, sl); err != nil {
		return nil, grpcerr.To(err)
	}
	return &mountv1.DetachResponse{}, nil
}

// detachGrace is how long a detach waits for the kernel to let go of what it
// unmounted; the rest happens behind its back.
const detachGrace = time.Second

// take unmounts what is in a slot, whose mu is held.
func (s *service) take(ctx context.Context, sl *slot) error {
	m := sl.mount
	if m == nil {
		return nil
	}
	finish, err := m.unmount()
	if err != nil {
		return err
	}
	s.mu.Lock()
	sl.mount = nil
	s.mu.Unlock()
	s.local.remove(m.endpoint)
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		finish()
		if !m.bind {
			m.log.Info("unmounted", logging.Path, m.path)
		}
	})
	if !m.bind {
		s.fds.drop(m.workspace)
	}
	t := time.NewTimer(detachGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	case <-ctx.Done():
	}
	return nil
}

// detachAll ends the service: nothing is attached after it.
func (s *service) detachAll(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	slots := make([]*slot, 0, len(s.slots))
	for _, sl := range s.slots {
		slots = append(slots, sl)
	}
	s.mu.Unlock()
	errs := make([]error, len(slots))
	var wg sync.WaitGroup
	for i, sl := range slots {
		wg.Go(func() {
			sl.mu.Lock()
			defer sl.mu.Unlock()
			errs[i] = s.take(ctx, sl)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// find returns a workspace's mount.
func (s *service) find(w string) (*mount, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.slots[w]; sl != nil && sl.mount != nil {
		return sl.mount, nil
	}
	return nil, fmt.Errorf("%w: no mount of workspace %q", core.ErrNotFound, w)
}

// Settle returns the errors that nobody was told.
func (s *service) Settle(ctx context.Context, r *mountv1.SettleRequest) (*mountv1.SettleResponse, error) {
	m, err := s.find(r.GetWorkspace())
	if err == nil && !m.bind {
		err = m.fs.Settle(ctx)
	}
	if err != nil {
		return nil, grpcerr.To(fmt.Errorf("settle %s: %w", r.GetWorkspace(), err))
	}
	return &mountv1.SettleResponse{}, nil
}

// Refresh drops what a change up to the event made untrue.
func (s *service) Refresh(ctx context.Context, r *mountv1.RefreshRequest) (*mountv1.RefreshResponse, error) {
	m, err := s.find(r.GetWorkspace())
	if err == nil && !m.bind {
		e := boxpb.ToEvent(r.GetEvent())
		err = m.fs.Refresh(ctx, e.Boot, e.Number)
	}
	if err != nil {
		return nil, grpcerr.To(fmt.Errorf("refresh %s: %w", r.GetWorkspace(), err))
	}
	return &mountv1.RefreshResponse{}, nil
}

// Mounts lists the mounts by workspace.
func (s *service) Mounts(context.Context, *mountv1.MountsRequest) (*mountv1.MountsResponse, error) {
	s.mu.Lock()
	var mounts []*mount
	for _, sl := range s.slots {
		if sl.mount != nil {
			mounts = append(mounts, sl.mount)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(mounts, func(a, b *mount) int { return strings.Compare(a.workspace, b.workspace) })
	resp := &mountv1.MountsResponse{}
	for _, m := range mounts {
		resp.Mounts = append(resp.Mounts, m.state())
	}
	return resp, nil
}

func (m *mount) state() *mountv1.Mount {
	st := &mountv1.Mount{Workspace: m.workspace, Path: m.path, Link: linkUp}
	if m.bind {
		return st
	}
	if !m.fs.Up() || !m.alive() {
		st.Link = linkDown
	}
	st.OpenFiles, st.Errors = uint64(m.fs.OpenFiles()), m.fs.Errors()
	return st
}

const (
	linkUp   = "up"
	linkDown = "down"
)

// Shutdown begins the end; the process is gone a moment after the answer.
func (s *service) Shutdown(ctx context.Context, _ *mountv1.ShutdownRequest) (*mountv1.ShutdownResponse, error) {
	err := s.detachAll(ctx)
	s.stop()
	if err != nil {
		return nil, grpcerr.To(err)
	}
	return &mountv1.ShutdownResponse{}, nil
}
