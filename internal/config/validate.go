package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxSocketPath is what fits into sockaddr_un, see unix(7).
const maxSocketPath = 107

var (
	poolNames = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	schemes   = []string{"tai", "tunnel", "docker", "unix", "tcp", "ssh", "k8s"}
)

// Validate returns everything that is wrong with the configuration, joined.
func (c Config) Validate() error {
	var v checks
	v.gateway(c)
	v.mount(c.Mount, c.Gateway.StateDir)
	if c.Plugins.Dir == "" {
		v.add("plugins.dir: empty; name the folder with the plugin binaries")
	}
	seen := map[string]bool{}
	for i, p := range c.Pools {
		if seen[p.Name] {
			v.add("pool %q: there are two of this name", p.Name)
		}
		seen[p.Name] = true
		v.pool(i, p, c.Gateway.StateDir)
	}
	return errors.Join(v.errs...)
}

type checks struct{ errs []error }

func (v *checks) add(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

func (v *checks) gateway(c Config) {
	path := c.SocketPath()
	switch {
	case path == "":
		v.add("gateway.listen: %q is not a unix socket; write unix:///absolute/path (no other address is supported yet)", c.Gateway.Listen)
	case !filepath.IsAbs(path):
		v.add("gateway.listen: %q is not absolute", c.Gateway.Listen)
	case len(path) > maxSocketPath:
		v.add("gateway.listen: %q is %d bytes long, a unix socket's path may have %d", path, len(path), maxSocketPath)
	}
	if !filepath.IsAbs(c.Gateway.StateDir) {
		v.add("gateway.state_dir: %q is not absolute", c.Gateway.StateDir)
	}
	if p := filepath.Join(c.Gateway.StateDir, "mountd.fd.sock"); len(p) > maxSocketPath {
		v.add("gateway.state_dir: too long by %d bytes: unix sockets are made in it", len(p)-maxSocketPath)
	}
}

func (v *checks) mount(m Mount, stateDir string) {
	switch {
	case !filepath.IsAbs(m.Root):
		v.add("mount.root: %q is not absolute", m.Root)
	case within(stateDir, m.Root):
		v.add("mount.root: the state directory %s is inside of it; choose another directory for one of them", stateDir)
	case within(m.Root, filepath.Join(stateDir, "pools")):
		v.add("mount.root: %q is where pools keep their state; choose another directory", m.Root)
	}
	v.oneOf("mount.owner", m.Owner, "squash", "none")
	v.oneOf("mount.symlinks", m.Symlinks, "contain", "raw", "nofollow")
}

func (v *checks) pool(i int, p Pool, stateDir string) {
	at := fmt.Sprintf("pool %q", p.Name)
	if !poolNames.MatchString(p.Name) {
		v.add("pool %d: name %q: need a letter or digit, then at most 62 letters, digits, dots, dashes and underscores", i+1, p.Name)
	}
	if sock := filepath.Join(stateDir, "pools", p.Name, "node.sock"); len(sock) > maxSocketPath {
		v.add("%s: its socket's path %s would have %d bytes, which may be %d; choose a shorter name or state_dir", at, sock, len(sock), maxSocketPath)
	}
	scheme, _, isURL := strings.Cut(p.Addr, "://")
	switch {
	case p.Addr == "":
		v.add("%s: addr is missing; for this machine write \"local\"", at)
	case p.Plugin == "" && p.Addr != "local" && !isURL:
		v.add("%s: addr %q: need \"local\" or a URL such as tai://host:19100, or a plugin's name beside it", at, p.Addr)
	case p.Plugin == "" && isURL:
		v.oneOf(at+": addr", scheme, schemes...)
	}
	if p.Plugin != "" && !poolNames.MatchString(p.Plugin) {
		v.add("%s: plugin %q is not the name of a plugin; the file plugin-%s is looked for", at, p.Plugin, p.Plugin)
	}
	if p.MaxTotal < 0 || p.MaxPerUser < 0 {
		v.add("%s: max_total and max_per_user are at least 0, which is no limit", at)
	}
	for key, d := range map[string]time.Duration{"idle_timeout": p.IdleTimeout, "max_lifetime": p.MaxLifetime, "stop_timeout": p.StopTimeout} {
		if d < 0 {
			v.add("%s: %s is less than 0", at, key)
		}
	}
	for _, h := range p.Hide {
		if !filepath.IsAbs(h) {
			v.add("%s: hide: %q is not absolute", at, h)
		}
	}
}

func (v *checks) oneOf(key, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	v.add("%s: %q is none of %s", key, value, strings.Join(allowed, ", "))
}

// within tells whether path is dir or below it, by their names.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// socketPath returns the path of a unix address, empty for any other address.
func socketPath(addr string) string {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		return path
	}
	if filepath.IsAbs(addr) {
		return addr
	}
	return ""
}
