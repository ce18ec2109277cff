package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

func TestStateDirHasOneGateway(t *testing.T) {
	dir := t.TempDir()
	f, err := lockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// A second open file description is refused like another process's.
	g, err := lockStateDir(dir)
	if err == nil {
		g.Close()
	}
	if !errors.Is(err, core.ErrConflict) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("second gateway: got %v, want ErrConflict that names our pid", err)
	}
	if pid, err := lockedBy(filepath.Join(dir, "gateway.lock")); err != nil || pid != os.Getpid() {
		t.Errorf("lockedBy: got %d, %v, want our pid", pid, err)
	}

	f.Close()
	if pid, err := lockedBy(filepath.Join(dir, "gateway.lock")); err != nil || pid != 0 {
		t.Errorf("lockedBy after the end: got %d, %v, want 0", pid, err)
	}
	again, err := lockStateDir(dir)
	if err != nil {
		t.Fatalf("after the first one's end: %v", err)
	}
	again.Close()
}

func TestStateDirModes(t *testing.T) {
	tests := []struct {
		name  string
		other bool
		root  string // relative to the state directory's parent
		want  os.FileMode
	}{
		{"mounts elsewhere", true, "mnt", 0o700},
		{"mounts within for others", true, "state/mnt", 0o711},
		{"mounts within for us", false, "state/mnt", 0o700},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			c := DefaultConfig()
			c.Gateway.StateDir = filepath.Join(parent, "state")
			c.Mount.Root, c.Mount.AllowOther = filepath.Join(parent, tt.root), tt.other
			if err := prepareStateDir(c); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(c.Gateway.StateDir)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != tt.want {
				t.Errorf("got mode %o, want %o", got, tt.want)
			}
		})
	}
}

func TestStateDirOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give a directory away")
	}
	c := DefaultConfig()
	c.Gateway.StateDir = t.TempDir()
	if err := os.Chown(c.Gateway.StateDir, 65534, -1); err != nil {
		t.Fatal(err)
	}
	if err := prepareStateDir(c); !errors.Is(err, core.ErrPermission) {
		t.Errorf("got %v, want ErrPermission", err)
	}
}

func TestGatewayIDStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gateway.id")
	first, err := loadID(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := loadID(path); err != nil || again != first {
		t.Errorf("again: got %q, %v, want %q", again, err, first)
	}
	if err := os.WriteFile(path, []byte("\x00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := loadID(path); err == nil {
		t.Errorf("damaged file: got id %q, want an error", id)
	}
}
