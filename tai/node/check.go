package node

import (
	"path"
	"regexp"
	"strings"

	"github.com/yaoapp/sbgw/core"
)

// Image is the one image there is: the machine's own root file system.
const Image = "host"

const (
	minMemory = 6 << 20 // below it no runtime can start anything
	minCPUs   = 0.01    // the kernel's smallest quota, see sched-bwc.rst
)

var boxIDs = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)

// checkSpec refuses what this runtime can't make.
func checkSpec(s core.BoxSpec) error {
	switch {
	case !boxIDs.MatchString(string(s.ID)):
		return core.Invalid("box id %q: use 1 to 128 letters, digits, dots, dashes and underscores", clip(string(s.ID)))
	case s.Image != Image:
		return core.Unsupported("image " + clip(s.Image) + ": this node has the image " + Image + " only")
	case s.VNC:
		return core.Unsupported("vnc on this node")
	case len(s.Ports) > 0:
		return core.Unsupported("published ports on this node: its boxes have no network")
	case s.Memory != 0 && s.Memory < minMemory:
		return core.Invalid("memory of %d bytes: at least %d are needed", s.Memory, minMemory)
	case s.CPUs != 0 && !(s.CPUs >= minCPUs):
		return core.Invalid("%g cpus: at least %g are needed", s.CPUs, minCPUs)
	case s.PIDs < 0:
		return core.Invalid("%d processes", s.PIDs)
	case s.WorkDir != "" && !path.IsAbs(s.WorkDir):
		return core.Invalid("working directory %q: not an absolute path", clip(s.WorkDir))
	case len(s.Cmd) > 0 && s.Cmd[0] == "":
		return core.Invalid("empty command")
	}
	targets := map[string]bool{}
	for _, m := range s.Mounts {
		if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/" || targets[m.Target] {
			return core.Invalid("mount target %q: not a clean absolute path below /, or there twice", clip(m.Target))
		}
		targets[m.Target] = true
	}
	return checkStrings(append(s.Cmd[:len(s.Cmd):len(s.Cmd)], s.WorkDir, s.User), s.Env)
}

// checkExec refuses what can't be started.
func checkExec(s core.ExecSpec) error {
	if len(s.Cmd) == 0 || s.Cmd[0] == "" {
		return core.Invalid("empty command")
	}
	return checkStrings(append(s.Cmd[:len(s.Cmd):len(s.Cmd)], s.Dir, s.User), s.Env)
}

// checkStrings refuses what execve(2) can't carry.
func checkStrings(words, env []string) error {
	for _, w := range words {
		if strings.ContainsRune(w, 0) {
			return core.Invalid("%q has a NUL character", clip(w))
		}
	}
	for _, kv := range env {
		key, _, ok := strings.Cut(kv, "=")
		if !ok || key == "" || strings.ContainsRune(kv, 0) {
			return core.Invalid("environment variable %q: not of the form KEY=value, or with a NUL character", clip(key))
		}
	}
	return nil
}

// clip keeps messages about hostile input short.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
