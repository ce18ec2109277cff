package oci

import (
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/yaoapp/sbgw/core"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Process returns the process of an exec in a box. The command goes through `tai
// exec` in the box, which changes to the directory and finds the command with
// the box's own eyes.
func Process(b core.BoxSpec, e core.ExecSpec, u User) *specs.Process {
	p := &specs.Process{
		Terminal:        e.TTY,
		Args:            append([]string{ToolPath, "exec", "--dir", workDir(b, e.Dir), "--"}, e.Cmd...),
		Cwd:             "/",
		Env:             environ(b, e, u),
		NoNewPrivileges: true,
		Capabilities:    capabilitiesOf(u),
		User:            specs.User{UID: u.UID, GID: u.GID, AdditionalGids: u.Groups},
	}
	if e.TTY && e.Size != (core.WindowSize{}) {
		p.ConsoleSize = &specs.Box{Height: uint(e.Size.Rows), Width: uint(e.Size.Cols)}
	}
	return p
}

// capabilitiesOf gives root what it may have; others may not even inherit it.
func capabilitiesOf(u User) *specs.LinuxCapabilities {
	c := &specs.LinuxCapabilities{Bounding: slices.Clone(capabilities)}
	if u.UID == 0 {
		c.Effective, c.Permitted = slices.Clone(capabilities), slices.Clone(capabilities)
	}
	return c
}

// workDir is where a command starts: dir, relative to the box's own directory.
func workDir(b core.BoxSpec, dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join("/", b.WorkDir, dir)
}

// environ is the defaults, overridden by the box's environment, overridden by
// the exec's.
func environ(b core.BoxSpec, e core.ExecSpec, u User) []string {
	env := []string{defaultPath, "HOSTNAME=" + Hostname(b.ID), "HOME=" + u.Home}
	if e.TTY {
		env = append(env, "TERM=xterm")
	}
	at := map[string]int{}
	var out []string
	for _, kv := range slices.Concat(env, b.Env, e.Env) {
		key, _, _ := strings.Cut(kv, "=")
		if i, ok := at[key]; ok {
			out[i] = kv
			continue
		}
		at[key] = len(out)
		out = append(out, kv)
	}
	return out
}
