package volume

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"syscall"

	"github.com/yaoapp/sbgw/workspace"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	// maxLinks is how many links one path may go through, as in the kernel.
	maxLinks = 40
	// namesPerWalk is how many names one request looks up.
	namesPerWalk = 16
	// forgetBatch is how many references are given back at once.
	forgetBatch = 128
	// retries of a lookup whose object was replaced meanwhile.
	retries = 3
)

// volumeFS is a Client seen by paths.
type volumeFS struct {
	c *Client

	mu   sync.Mutex
	used []*volumev1.Object // references to give back
}

var _ workspace.FS = (*volumeFS)(nil)

// NewFS returns the volume of a client as files by path. Closing it closes the
// client. Its new objects belong to the owner of the volume's root.
func NewFS(c *Client) workspace.FS { return &volumeFS{c: c} }

// Close implements workspace.FS.
func (f *volumeFS) Close() error { return f.c.Close() }

// do carries a request out; what its reply refers to is given back some time
// after.
func (f *volumeFS) do(op *volumev1.Request) (*volumev1.Reply, error) {
	op.Caller = &volumev1.Caller{Squash: true}
	r, err := f.c.Do(context.Background(), op)
	if r != nil {
		f.giveBack(ObjectsIn(r))
	}
	return r, err
}

// giveBack keeps the last references for a while, since the caller uses them now.
func (f *volumeFS) giveBack(objects []*volumev1.Object) {
	f.mu.Lock()
	f.used = append(f.used, objects...)
	var old []*volumev1.Object
	if len(f.used) > 2*forgetBatch {
		old = append(old, f.used[:len(f.used)-forgetBatch]...)
		f.used = append(f.used[:0], f.used[len(old):]...)
	}
	f.mu.Unlock()
	f.c.Forget(context.Background(), old...)
}
