package coretest

import (
	"io/fs"
	"os"
	"path"
	"testing"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/workspace"
)

// DirFiles reaches volumes whose endpoint is a local directory; it is a
// Harness.Files.
func DirFiles(t *testing.T, e core.Endpoint) workspace.FS {
	t.Helper()
	if e.Kind != core.EndpointDir {
		t.Fatalf("endpoint: got kind %q, want %q", e.Kind, core.EndpointDir)
	}
	root, err := os.OpenRoot(e.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dirFS{root.FS(), root}
}

// dirFS is a workspace.FS on a directory.
type dirFS struct {
	fs.FS
	root *os.Root
}

var _ workspace.FS = dirFS{}

func (d dirFS) Stat(name string) (fs.FileInfo, error)        { return fs.Stat(d.FS, name) }
func (d dirFS) ReadFile(name string) ([]byte, error)         { return fs.ReadFile(d.FS, name) }
func (d dirFS) ReadDir(name string) ([]fs.DirEntry, error)   { return fs.ReadDir(d.FS, name) }
func (d dirFS) Remove(name string) error                     { return d.root.Remove(name) }
func (d dirFS) RemoveAll(name string) error                  { return d.root.RemoveAll(name) }
func (d dirFS) Rename(oldName, newName string) error         { return d.root.Rename(oldName, newName) }
func (d dirFS) MkdirAll(name string, perm fs.FileMode) error { return d.root.MkdirAll(name, perm) }
func (d dirFS) Close() error                                 { return d.root.Close() }

func (d dirFS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	if err := d.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	part := name + ".part"
	if err := d.root.WriteFile(part, data, perm); err != nil {
		return err
	}
	return d.root.Rename(part, name)
}
