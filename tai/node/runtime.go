package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/oci"
)

// Barrier is what a Runtime asks of the Volume server after a process ended.
type Barrier interface {
	// Barrier returns an event at or after every change of the volume that was
	// complete before the call. It blocks.
	Barrier(ctx context.Context, v core.VolumeSession) (core.Event, error)
}

// Runtime runs boxes on this machine. It implements core.Backend and every
// ability there is.
type Runtime struct {
	log     *slog.Logger
	volumes Barrier

	state   string // the state directory
	socket  string
	hide    []string
	tool    string // our copy of the tai program
	oci     ociRuntime
	host    oci.Features
	cgroups string // what the names of the boxes' cgroups begin with
	node    string

	life   context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	boxes    map[core.BoxID]*box
	watchers map[*watcher]struct{}
	execs    map[core.Process]struct{}
	cursor   uint64
}

var (
	_ core.Backend       = (*Runtime)(nil)
	_ core.Execer        = (*Runtime)(nil)
	_ core.VolumeOpener  = (*Runtime)(nil)
	_ core.VolumeRemover = (*Runtime)(nil)
)

var errClosed = fmt.Errorf("%w: the node is ending", core.ErrUnavailable)

// Open makes a runtime on a state directory, which nothing else may use, and
// finds the boxes that are there.
func Open(ctx context.Context, o Options, volumes Barrier) (*Runtime, error) {
	found, err := findRuntime(ctx)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"boxes", "volumes", "runc", "bin", "trash"} {
		if err := os.MkdirAll(filepath.Join(o.StateDir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	if err := emptyDir(filepath.Join(o.StateDir, "trash")); err != nil {
		return nil, err
	}
	tool, err := copyTool(o.Binary, filepath.Join(o.StateDir, "bin"))
	if err != nil {
		return nil, fmt.Errorf("copy the tai program: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(o.StateDir))
	r := &Runtime{
		log: logging.OrDiscard(o.Log), volumes: volumes,
		state: o.StateDir, socket: o.Socket, tool: tool, oci: found, node: host,
		hide:    append([]string{o.StateDir, o.Socket}, o.Hide...),
		host:    oci.Features{CgroupV2: oci.IsV2(oci.CgroupRoot), Seccomp: found.seccomp, Swap: oci.LimitsSwap(oci.CgroupRoot)},
		cgroups: "/sbgw-" + hex.EncodeToString(sum[:4]) + "-",
		boxes:   map[core.BoxID]*box{}, watchers: map[*watcher]struct{}{}, execs: map[core.Process]struct{}{},
	}
	r.life, r.cancel = context.WithCancelCause(context.Background())
	if !found.seccomp {
		r.log.Warn("no seccomp here: boxes run without a system call filter")
	}
	if err := r.recover(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close lets go of every box and process; they run on. No call may begin any more.
func (r *Runtime) Close() error {
	r.letGo()
	r.wg.Wait()
	return nil
}

// letGo ends every call that waits for a box or a process.
func (r *Runtime) letGo() {
	r.cancel(errClosed)
	r.mu.Lock()
	var processes []core.Process
	for p := range r.execs {
		processes = append(processes, p)
	}
	for _, b := range r.boxes {
		if b.link != nil {
			b.link.Close()
		}
	}
	r.mu.Unlock()
	for _, p := range processes {
		p.Close()
	}
}

// Describe is of core.Backend.
func (r *Runtime) Describe(context.Context) (core.BackendInfo, error) {
	return core.BackendInfo{
		Node: r.node, Runtime: r.oci.name, RuntimeVersion: r.oci.version,
		OS: goruntime.GOOS, Arch: goruntime.GOARCH, Network: networkNone,
		Abilities: []core.Ability{core.AbilityExec, core.AbilityVolume, core.AbilityVolumeRemoval},
	}, nil
}

// networkNone: a box has a loopback interface of its own and nothing else.
const networkNone = "none"

func (r *Runtime) cgroup(id core.BoxID) oci.Cgroup {
	return oci.Cgroup{Root: oci.CgroupRoot, Path: r.cgroups + string(id), V2: r.host.CgroupV2}
}

// discard deletes a tree, by way of the trash, so that it is gone at once and
// never half there.
func (r *Runtime) discard(path string) error {
	trash, err := os.MkdirTemp(filepath.Join(r.state, "trash"), "")
	if err != nil {
		return err
	}
	err = os.Rename(path, filepath.Join(trash, "x"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, os.Remove(trash))
	}
	return os.RemoveAll(trash)
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
