package gateway

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs/mountd"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/volume"
	"github.com/yaoapp/sbgw/workspace"
)

// idleVolume is how long a client of a Volume server is kept after its last use.
const idleVolume = time.Minute

// volumeOpen bounds how long a Volume server may take to answer at first.
const volumeOpen = 20 * time.Second

// volumes is a core.VolumeGate: it keeps a client for each workspace whose
// barriers it takes part in.
type volumes struct {
	mountd string // the mount process's socket, see mountd.Reach
	log    *slog.Logger

	opening sync.WaitGroup

	mu      sync.Mutex
	clients map[core.WorkspaceID]*volumeClient
	closed  bool
}

var _ core.VolumeGate = (*volumes)(nil)

// volumeClient is a client that is being opened, or open. The one who put it into
// the map opens it and then closes opened.
type volumeClient struct {
	endpoint core.Endpoint
	opened   chan struct{}
	client   *volume.Client
	err      error

	// Guarded by volumes.mu.
	users int
	gone  bool // not in the map: the last user closes it
	idle  *time.Timer
}

func newVolumes(socket string, log *slog.Logger) *volumes {
	return &volumes{mountd: socket, log: log, clients: map[core.WorkspaceID]*volumeClient{}}
}

// Recall implements core.VolumeGate.
func (v *volumes) Recall(ctx context.Context, w core.WorkspaceID, e core.Endpoint) error {
	return v.with(ctx, w, e, func(c *volume.Client) error {
		_, err := c.Do(ctx, &volumev1.Request{Op: &volumev1.Request_Recall{Recall: &volumev1.Recall{}}})
		return err
	})
}

// Barrier implements core.VolumeGate.
func (v *volumes) Barrier(ctx context.Context, w core.WorkspaceID, e core.Endpoint) (core.Event, error) {
	var event core.Event
	err := v.with(ctx, w, e, func(c *volume.Client) error {
		r, err := c.Do(ctx, &volumev1.Request{Op: &volumev1.Request_Barrier{Barrier: &volumev1.Barrier{}}})
		if err != nil {
			return err
		}
		event = core.Event{Session: e.Session, Boot: string(c.Hello().GetBootId()), Number: r.GetBarrier().GetEvent()}
		return nil
	})
	return event, err
}

// with calls f with the workspace's client, opening it if need be.
func (v *volumes) with(ctx context.Context, w core.WorkspaceID, e core.Endpoint, f func(*volume.Client) error) error {
	c, err := v.acquire(w, e)
	if err != nil {
		return err
	}
	defer v.release(w, c)
	select {
	case <-c.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.err != nil {
		v.drop(w, c)
		return c.err
	}
	return f(c.client)
}

func (v *volumes) acquire(w core.WorkspaceID, e core.Endpoint) (*volumeClient, error) {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return nil, core.ErrNotAvailable
	}
	c, old := v.clients[w], (*volumeClient)(nil)
	if c != nil && !sameEndpoint(c.endpoint, e) {
		old, c = v.dropLocked(w, c), nil
	}
	if c == nil {
		c = &volumeClient{endpoint: e, opened: make(chan struct{}), users: 1}
		v.clients[w] = c
		v.opening.Go(func() { v.open(w, c) })
	}
	c.users++
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	v.mu.Unlock()

	v.end(old)
	return c, nil
}

// open connects a client, for whoever waits for it.
func (v *volumes) open(w core.WorkspaceID, c *volumeClient) {
	ctx, cancel := context.WithTimeout(context.Background(), volumeOpen)
	defer cancel()
	c.client, c.err = volume.Open(ctx, mountd.Reach(c.endpoint, v.mountd), volume.Options{Log: v.log})
	close(c.opened)
	v.release(w, c)
}

func (v *volumes) release(w core.WorkspaceID, c *volumeClient) {
	v.mu.Lock()
	c.users--
	var unused *volumeClient
	switch {
	case c.users > 0:
	case c.gone:
		unused = c
	default:
		c.idle = time.AfterFunc(idleVolume, func() { v.drop(w, c) })
	}
	v.mu.Unlock()

	v.end(unused)
}

// drop takes a client out of use; who uses it now still may.
func (v *volumes) drop(w core.WorkspaceID, c *volumeClient) {
	v.mu.Lock()
	unused := v.dropLocked(w, c)
	v.mu.Unlock()

	v.end(unused)
}

// dropLocked takes a client out of the map. It returns the client if nobody uses
// it: the caller then ends it.
func (v *volumes) dropLocked(w core.WorkspaceID, c *volumeClient) *volumeClient {
	if c.gone {
		return nil
	}
	c.gone = true
	delete(v.clients, w)
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	if c.users > 0 {
		return nil
	}
	return c
}

// forget lets go of a workspace's client before its volume is deleted.
func (v *volumes) forget(w core.WorkspaceID) {
	v.mu.Lock()
	var unused *volumeClient
	if c := v.clients[w]; c != nil {
		unused = v.dropLocked(w, c)
	}
	v.mu.Unlock()

	v.end(unused)
}

// end closes a client, if there is one, that nobody uses or can find any more.
func (v *volumes) end(c *volumeClient) {
	if c == nil || c.client == nil {
		return
	}
	if err := c.client.Close(); err != nil {
		v.log.Debug("close volume client", "err", err)
	}
}

// close lets go of every client; those in use end with their call.
func (v *volumes) close() {
	v.mu.Lock()
	v.closed = true
	var unused []*volumeClient
	for w, c := range v.clients {
		unused = append(unused, v.dropLocked(w, c))
	}
	v.mu.Unlock()

	for _, c := range unused {
		v.end(c)
	}
	v.opening.Wait()
}

func sameEndpoint(a, b core.Endpoint) bool {
	return a.Kind == b.Kind && a.Address == b.Address && a.Session == b.Session && a.Instance == b.Instance &&
		slices.Equal(a.Argv, b.Argv) && slices.Equal(a.Token, b.Token)
}

// opener is a workspace.Opener over the pools' backends.
type opener struct {
	volumes *volumes
	backend func(core.PoolName) (core.Backend, error)
}

var _ workspace.Opener = opener{}

func (o opener) endpoint(ctx context.Context, w workspace.Workspace, create bool) (core.Endpoint, error) {
	b, err := o.backend(w.Pool)
	if err != nil {
		return core.Endpoint{}, err
	}
	v, err := core.Has[core.VolumeOpener](ctx, b, core.AbilityVolume)
	if err != nil {
		return core.Endpoint{}, err
	}
	return v.OpenVolume(ctx, core.VolumeSession(w.ID), create)
}

// Create implements workspace.Opener.
func (o opener) Create(ctx context.Context, w workspace.Workspace) error {
	_, err := o.endpoint(ctx, w, true)
	return err
}

// Open implements workspace.Opener.
func (o opener) Open(ctx context.Context, w workspace.Workspace) (workspace.FS, error) {
	e, err := o.endpoint(ctx, w, false)
	if err != nil {
		return nil, err
	}
	c, err := volume.Open(ctx, mountd.Reach(e, o.volumes.mountd), volume.Options{Log: o.volumes.log})
	if err != nil {
		return nil, err
	}
	return volumeFS{FS: volume.NewFS(c), client: c}, nil
}

// Delete implements workspace.Opener.
func (o opener) Delete(ctx context.Context, w workspace.Workspace) error {
	b, err := o.backend(w.Pool)
	if err != nil {
		return err
	}
	v, err := core.Has[core.VolumeRemover](ctx, b, core.AbilityVolumeRemoval)
	if err != nil {
		return err
	}
	o.volumes.forget(w.ID)
	return v.RemoveVolume(ctx, core.VolumeSession(w.ID))
}

// volumeFS is a workspace.FS that owns its client.
type volumeFS struct {
	workspace.FS
	client *volume.Client
}

// Close closes the files and the client.
func (f volumeFS) Close() error {
	err := f.FS.Close()
	if cerr := f.client.Close(); err == nil {
		err = cerr
	}
	return err
}
