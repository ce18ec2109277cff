// Package shim is the small process beside every running box, and the way a node
// talks to it. The shim mounts the box's root in a mount namespace of its own,
// has an OCI runtime make the container, holds the standard streams of every exec
// and reaps all processes that come from outside of the box. Its node may die and
// return meanwhile: everything it must know is in the box's directory, everything
// it may ask goes over two unix sockets in it.
//
// Files in a box's directory:
//
//	start.json  Config, written by the node before each start
//	state.json  State, written by the shim when the main process runs
//	exit.json   Exit, written by the shim when everything is torn down
//	ctl.sock    JSON lines: Status out, command in
//	exec.sock   one connection is one exec, see serveExec
//	shim.lock   locked by a living shim
//	config.json the runtime's bundle; rootfs and files are of package rootfs
//	shim.log    what the shim has to say; main.log: what the main process says
package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/tai/oci"
	"github.com/yaoapp/sbgw/tai/rootfs"
)

const (
	startFile   = "start.json"
	stateFile   = "state.json"
	exitFile    = "exit.json"
	ctlSocket   = "ctl.sock"
	execSocket  = "exec.sock"
	lockFile    = "shim.lock"
	shimLog     = "shim.log"
	mainLog     = "main.log"
	tempDir     = "tmp"
	runtimeLog  = "runtime.log"
	mainPIDFile = "main.pid"
)

// Config is one start of a box.
type Config struct {
	Incarnation core.Incarnation
	Spec        core.BoxSpec
	// Runtime is the OCI runtime's binary, RuntimeRoot its state directory.
	Runtime     string
	RuntimeRoot string
	// Tool is the tai binary that the box gets.
	Tool   string
	Cgroup oci.Cgroup
	Host   oci.Features
	Binds  []oci.Bind
	Hide   []string
}

// State is a box that was started.
type State struct {
	Incarnation core.Incarnation
	// PID is the main process, seen from the machine, Ticks when it began; both
	// name a process for as long as the machine runs.
	PID       int
	Ticks     uint64
	StartedAt time.Time
	Upper     rootfs.Upper
}

// Exit is how a box ended.
type Exit struct {
	Incarnation core.Incarnation
	Code        *int // nil: unknown
	Reason      core.Reason
	FinishedAt  time.Time
}

// Status is what a shim tells its node, first on connecting, then on each change.
type Status struct {
	State State
	Execs int
	// Exit is set in the last one.
	Exit *Exit `json:",omitempty"`
}

// command is what a node tells a shim.
type command struct {
	Stop  bool
	Grace time.Duration
}

// WriteConfig writes the configuration of the next start and forgets the last one.
func WriteConfig(dir string, c Config) error {
	if err := Forget(dir); err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, startFile), c)
}

// Forget removes what is left of a start that came to nothing.
func Forget(dir string) error {
	for _, name := range []string{stateFile, exitFile, startFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ReadConfig returns the configuration of the last start, or fs.ErrNotExist.
func ReadConfig(dir string) (c Config, err error) {
	return c, ReadFile(filepath.Join(dir, startFile), &c)
}

// ReadState returns the state of the last start, or fs.ErrNotExist.
func ReadState(dir string) (s State, err error) {
	return s, ReadFile(filepath.Join(dir, stateFile), &s)
}

// ReadExit returns how the last start ended, or fs.ErrNotExist.
func ReadExit(dir string) (e Exit, err error) {
	return e, ReadFile(filepath.Join(dir, exitFile), &e)
}

// WriteExit records how a box ended whose shim can't tell.
func WriteExit(dir string, e Exit) error {
	return WriteFile(filepath.Join(dir, exitFile), e)
}

// WriteFile writes a value as JSON so that a reader sees the old or the new one,
// also after the machine lost power.
func WriteFile(path string, v any) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// ReadFile reads what WriteFile wrote; an absent file is fs.ErrNotExist.
func ReadFile(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// ticksOf returns when a process began, in clock ticks since the machine did
// (field 22 of /proc/pid/stat, see proc(5)).
func ticksOf(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the name in parentheses, may have anything in it.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const index = 22 - 3
	if len(fields) <= index {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	return strconv.ParseUint(string(fields[index]), 10, 64)
}

// Alive tells whether the main process still runs. A zombie does not.
func (s State) Alive() bool {
	ticks, err := ticksOf(s.PID)
	if err != nil || s.PID == 0 || ticks != s.Ticks {
		return false
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID))
	i := bytes.LastIndexByte(data, ')')
	return err == nil && i >= 0 && len(data) > i+2 && data[i+2] != 'Z'
}
