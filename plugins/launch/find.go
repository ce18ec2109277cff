package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/yaoapp/sbgw/core"
)

// schemes tells which plugin serves an address that begins so.
var schemes = []struct{ prefix, kind string }{
	{"tai://", "tai"},
	{"tunnel:", "tai"},
	{"docker://", "docker"},
	{"unix://", "docker"},
	{"tcp://", "docker"},
	{"ssh://", "docker"},
	{"k8s://", "k8s"},
}

// kindPattern keeps a kind from naming a file elsewhere.
var kindPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// KindOf returns the kind of plugin that serves a pool: the one it names, else
// the one of its address.
func KindOf(p core.Pool) (string, error) {
	if p.Plugin != "" {
		if !kindPattern.MatchString(p.Plugin) {
			return "", core.Invalid("plugin %q is not the name of a kind (lower-case letters, digits, hyphens)", p.Plugin)
		}
		return p.Plugin, nil
	}
	if p.Addr == "local" {
		return "tai", nil
	}
	known := []string{"local"}
	for _, s := range schemes {
		if strings.HasPrefix(p.Addr, s.prefix) {
			return s.kind, nil
		}
		known = append(known, s.prefix)
	}
	return "", core.Invalid("no plugin is known for address %q: name one by plugin = \"…\", or use one of %s",
		p.Addr, strings.Join(known, " "))
}

// find returns the binary of a kind after checking that nobody but root and this
// user could have put it there.
func find(dir, kind string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, "plugin-"+kind))
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", core.Invalid("plugin %s is missing: there is no %s; build it (make build), set plugins.dir, or take out the pools that need it", kind, path)
	}
	if err != nil {
		return "", fmt.Errorf("look for plugin %s: %w", kind, err)
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", fmt.Errorf("look for plugin %s: %w", kind, err)
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return "", core.Invalid("plugin %s: %s is not an executable file", kind, path)
	}
	for _, p := range []string{real, filepath.Dir(real), filepath.Dir(path)} {
		if err := trusted(p); err != nil {
			return "", core.Invalid("plugin %s is not run: %v", kind, err)
		}
	}
	return real, nil
}

// trusted checks who may change a file or folder.
func trusted(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	if uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, neither root nor the gateway's own; chown it", path, uid)
	}
	if st.Mode()&0o022 != 0 {
		return fmt.Errorf("others may write to %s (mode %04o); chmod go-w it", path, st.Mode().Perm())
	}
	return nil
}
