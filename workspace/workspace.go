// Package workspace knows workspaces: directory trees with an id, an owner and a
// pool that they are bound to, which outlive the boxes that use them. Manager
// keeps their records; the bytes are reached through an Opener, and seen as FS.
package workspace

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// ID names a workspace. It is also its directory's name under the mount root.
type ID string

// Owner names who a box or workspace belongs to; empty is nobody in particular.
type Owner string

// PoolName names a pool.
type PoolName string

// Workspace is a workspace's record.
type Workspace struct {
	ID        ID                `json:"id"`
	Name      string            `json:"name,omitempty"`
	Owner     Owner             `json:"owner,omitempty"`
	Pool      PoolName          `json:"pool"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// FS is a workspace's files, by slash-separated paths relative to its root as in
// io/fs. Its methods may be called concurrently and block for as long as the
// storage takes. Errors are *fs.PathError and match fs.ErrNotExist, fs.ErrExist
// and fs.ErrPermission. A path never leaves the workspace: links are followed
// only inside of it.
type FS interface {
	fs.FS
	fs.StatFS
	fs.ReadFileFS
	fs.ReadDirFS
	io.Closer

	// WriteFile replaces the file's content, creating it with perm and missing
	// parents with 0755. A reader sees the old or the new content.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes a tree; absent is success.
	RemoveAll(name string) error
	// Rename moves a file or directory, replacing what rename(2) replaces.
	Rename(oldName, newName string) error
	// MkdirAll makes a directory with missing parents.
	MkdirAll(name string, perm fs.FileMode) error
}

// Opener reaches the bytes of workspaces; the gateway implements it over
// backends and the Volume service.
type Opener interface {
	// Create makes the workspace's volume; an existing one is success.
	Create(ctx context.Context, w Workspace) error
	// Open returns the workspace's files. The caller closes it.
	Open(ctx context.Context, w Workspace) (FS, error)
	// Delete deletes the volume with all its files; absent is success.
	Delete(ctx context.Context, w Workspace) error
}
