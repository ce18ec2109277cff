package oci

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CgroupRoot is where the cgroup file systems are mounted.
const CgroupRoot = "/sys/fs/cgroup"

// Cgroup reads what the kernel counts for a box, in either layout: one unified
// hierarchy (v2), or one per controller (v1).
type Cgroup struct {
	Root string
	Path string
	V2   bool
}

// IsV2 tells which layout is mounted at root.
func IsV2(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}

// LimitsSwap tells whether swap space can be limited. With v2 a kernel without
// swap accounting simply has none to give, and runtimes know it.
func LimitsSwap(root string) bool {
	if IsV2(root) {
		return true
	}
	_, err := os.Stat(filepath.Join(root, "memory", "memory.memsw.limit_in_bytes"))
	return err == nil
}

// OOMKills returns how many processes of the box the kernel killed for want of
// memory. A cgroup that is gone has none.
func (c Cgroup) OOMKills() (int, error) {
	if c.V2 {
		return keyed(c.file("", "memory.events"), "oom_kill")
	}
	return keyed(c.file("memory", "memory.oom_control"), "oom_kill")
}

// Processes returns how many processes the box has; threads don't count.
func (c Cgroup) Processes() (int, error) {
	data, err := os.ReadFile(c.file("pids", "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return bytes.Count(data, []byte("\n")), nil
}

// Remove removes the box's empty cgroup directories, which a runtime that was
// killed may have left.
func (c Cgroup) Remove() error {
	dirs := []string{filepath.Join(c.Root, c.Path)}
	if !c.V2 {
		found, err := filepath.Glob(filepath.Join(c.Root, "*", c.Path))
		if err != nil {
			return err
		}
		dirs = found
	}
	var errs []error
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// RemoveWithin is Remove, tried again for as long as d while processes that were
// killed are still on their way out.
func (c Cgroup) RemoveWithin(d time.Duration) error {
	for deadline := time.Now().Add(d); ; time.Sleep(removeInterval) {
		err := c.Remove()
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

const removeInterval = 10 * time.Millisecond

func (c Cgroup) file(controller, name string) string {
	if c.V2 {
		controller = ""
	}
	return filepath.Join(c.Root, controller, c.Path, name)
}

// keyed reads one number of a file of "key value" lines; an absent file has zeros.
func keyed(file, key string) (int, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), " "); ok && k == key {
			return strconv.Atoi(v)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return 0, nil
}
