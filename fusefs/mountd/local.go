package mountd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/volume"
)

// localVolumes serves the volumes whose bytes are in a directory of this machine
// (endpoints of kind dir), on the socket of the mount process's API: a mount that
// has to contain links or show other owners is a FUSE mount of that, and the
// gateway's barriers and file API ask it too.
type localVolumes struct {
	server *volume.Server

	mu   sync.Mutex
	dirs map[core.VolumeSession]string
}

func newLocalVolumes(log *slog.Logger) *localVolumes {
	l := &localVolumes{dirs: make(map[core.VolumeSession]string)}
	l.server = volume.NewServer(volume.ServerOptions{Dir: l.dir, Log: log})
	return l
}

func (l *localVolumes) dir(name string, _ []byte) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if dir, ok := l.dirs[core.VolumeSession(name)]; ok {
		return dir, nil
	}
	return "", fmt.Errorf("%w: no volume %q is attached from a directory", core.ErrNotFound, name)
}

// add makes a directory known. Another endpoint's is not touched.
func (l *localVolumes) add(e core.Endpoint) error {
	if e.Kind != core.EndpointDir {
		return nil
	}
	if !filepath.IsAbs(e.Address) {
		return core.Invalid("directory %q of a volume is not absolute", e.Address)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.dirs[e.Session]; ok && old != e.Address {
		return fmt.Errorf("%w: volume %s is attached from %s", core.ErrConflict, e.Session, old)
	}
	l.dirs[e.Session] = e.Address
	return nil
}

func (l *localVolumes) remove(e core.Endpoint) {
	if e.Kind != core.EndpointDir {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.dirs, e.Session)
}

// Reach returns where the Volume service of an attached endpoint answers: for a
// directory of this machine that is the mount process itself, on its API's
// socket; any other endpoint is its own answer.
func Reach(e core.Endpoint, socket string) core.Endpoint {
	if e.Kind != core.EndpointDir {
		return e
	}
	return core.Endpoint{Kind: core.EndpointUnix, Address: socket, Session: e.Session, ReadOnly: e.ReadOnly, Instance: e.Instance}
}
