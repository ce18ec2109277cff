// Package fake is a core.Driver for tests of what stands in front of one. Its
// boxes isolate nothing: a box is a record in the pool's state directory, and its
// commands are ordinary processes of this machine, which start in the directory
// of the box's volume. Files survive the process that made them, so a new Driver
// over the same directory finds the boxes again. It passes core/coretest.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/yaoapp/sbgw/core"
)

// Kind is the kind of the driver.
const Kind = "fake"

// Image is the only image there is.
const Image = "fake"

// Driver is a fake driver.
type Driver struct {
	mu    sync.Mutex
	pools map[core.PoolName]*Backend
}

var _ core.Driver = (*Driver)(nil)

// New returns a driver without pools.
func New() *Driver { return &Driver{pools: map[core.PoolName]*Backend{}} }

// Describe implements core.Driver.
func (d *Driver) Describe(context.Context) (core.DriverInfo, error) {
	return core.DriverInfo{Kind: Kind, Version: "test", APIVersion: core.APIVersion}, nil
}

// Options is the options table of a pool.
type Options struct {
	// Broken makes Open fail with ErrUnavailable and this text.
	Broken string `json:"broken"`
}

// Open implements core.Driver.
func (d *Driver) Open(_ context.Context, p core.PoolConfig) (core.Backend, error) {
	var o Options
	dec := json.NewDecoder(bytes.NewReader(p.Options))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil && !errors.Is(err, io.EOF) {
		return nil, core.Invalid("options of pool %s: %v", p.Name, err)
	}
	if o.Broken != "" {
		return nil, fmt.Errorf("%w: %s", core.ErrUnavailable, o.Broken)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.pools[p.Name]; b != nil {
		return b, nil
	}
	b, err := load(p.StateDir)
	if err != nil {
		return nil, err
	}
	d.pools[p.Name] = b
	return b, nil
}

// Close implements core.Driver.
func (d *Driver) Close(_ context.Context, p core.PoolName) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pools, p)
	return nil
}

// Backend is a pool of the fake driver.
type Backend struct {
	dir string

	mu      sync.Mutex
	boxes   map[core.BoxID]*box
	events  []core.BoxEvent
	changed chan struct{} // closed and renewed with every event
}

var (
	_ core.Backend       = (*Backend)(nil)
	_ core.Execer        = (*Backend)(nil)
	_ core.VolumeOpener  = (*Backend)(nil)
	_ core.VolumeRemover = (*Backend)(nil)
)

// box is a record and what runs of it in this process.
type box struct {
	Spec  core.BoxSpec
	State core.BoxState

	main  *process // nil: there is none
	procs map[*process]bool
}

// load finds the boxes of an earlier process. Their main processes are gone with
// it; those that had none go on.
func load(dir string) (*Backend, error) {
	b := &Backend{dir: dir, boxes: map[core.BoxID]*box{}, changed: make(chan struct{})}
	for _, sub := range []string{"boxes", "volumes"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "boxes", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		x := &box{procs: map[*process]bool{}}
		if err := json.Unmarshal(data, x); err != nil {
			return nil, fmt.Errorf("read record %s: %w", f, err)
		}
		if len(x.Spec.Cmd) > 0 && x.State.Status == core.StatusRunning {
			x.State.Status, x.State.Reason = core.StatusStopped, core.ReasonUnknown
		}
		b.boxes[x.Spec.ID] = x
	}
	return b, nil
}

// Describe implements core.Backend.
func (b *Backend) Describe(ctx context.Context) (core.BackendInfo, error) {
	return core.BackendInfo{
		Node: "here", Runtime: "fake", OS: runtime.GOOS, Arch: runtime.GOARCH, Network: "host",
		Abilities: []core.Ability{core.AbilityExec, core.AbilityVolume, core.AbilityVolumeRemoval},
	}, ctx.Err()
}

func (b *Backend) record(id core.BoxID) string {
	return filepath.Join(b.dir, "boxes", string(id)+".json")
}

// saveLocked keeps the record and tells the watchers.
func (b *Backend) saveLocked(x *box) error {
	data, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.record(x.Spec.ID), data, 0o644); err != nil {
		return err
	}
	st := x.State
	b.tellLocked(core.BoxEvent{State: &st})
	return nil
}

func (b *Backend) tellLocked(e core.BoxEvent) {
	e.Cursor = core.Cursor(fmt.Sprint(len(b.events) + 1))
	b.events = append(b.events, e)
	close(b.changed)
	b.changed = make(chan struct{})
}

// Watch implements core.Backend; it always begins with everything.
func (b *Backend) Watch(ctx context.Context, _ core.Cursor, f func(core.BoxEvent) error) error {
	b.mu.Lock()
	next := len(b.events)
	var first []core.BoxEvent
	for _, x := range b.boxes {
		st := x.State
		first = append(first, core.BoxEvent{State: &st})
	}
	b.mu.Unlock()

	for _, e := range append(first, core.BoxEvent{Synced: true}) {
		if err := f(e); err != nil {
			return err
		}
	}
	for {
		b.mu.Lock()
		news, changed := b.events[next:], b.changed
		next = len(b.events)
		b.mu.Unlock()

		for _, e := range news {
			if err := f(e); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
