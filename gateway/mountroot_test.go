package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

func TestCheckMountRoot(t *testing.T) {
	tests := []struct {
		name string
		prep func(root string) error
		want string // in the error; empty: fine
	}{
		{"absent", func(root string) error { return os.Remove(root) }, ""},
		{"empty", func(string) error { return nil }, ""},
		{"empty workspace directories", func(root string) error { return os.Mkdir(filepath.Join(root, "ws-1"), 0o700) }, ""},
		{"a file", func(root string) error { return os.WriteFile(filepath.Join(root, "precious"), nil, 0o600) }, "precious"},
		{"a link", func(root string) error { return os.Symlink("/etc", filepath.Join(root, "link")) }, "link"},
		{"a directory with something in it", func(root string) error { return os.MkdirAll(filepath.Join(root, "d", "e"), 0o700) }, "has d in it"},
		{"not a directory", func(root string) error {
			return errors.Join(os.Remove(root), os.WriteFile(root, nil, 0o600))
		}, "not a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "m")
			if err := errors.Join(os.Mkdir(root, 0o700), tt.prep(root)); err != nil {
				t.Fatal(err)
			}
			err := checkMountRoot(root)
			if tt.want == "" && err != nil {
				t.Errorf("got %v", err)
			}
			if tt.want != "" && (!errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want ErrInvalid with %q", err, tt.want)
			}
		})
	}
	if err := checkMountRoot("/proc"); !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), "itself a mount") {
		t.Errorf("a mount as root: got %v", err)
	}
}
