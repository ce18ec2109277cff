package volume

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(lockHolder); path != "" {
		holdLock(path)
		return
	}
	if socket := os.Getenv(pipeTo); socket != "" {
		pipe(socket)
		return
	}
	goleak.VerifyTestMain(m)
}

// rig is a served directory.
type rig struct {
	t      *testing.T
	dir    string // the volume
	socket string
	server *Server
	grpc   *grpc.Server
	// conns are the server's ends of the connections.
	mu    sync.Mutex
	conns []net.Conn
}

// trackListener lets a test cut connections.
type trackListener struct {
	net.Listener
	r *rig
}

func (l trackListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.r.mu.Lock()
		l.r.conns = append(l.r.conns, c)
		l.r.mu.Unlock()
	}
	return c, err
}

func newRig(t *testing.T, o ServerOptions) *rig {
	t.Helper()
	base, err := os.MkdirTemp("", "vol")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	r := &rig{t: t, dir: filepath.Join(base, "v"), socket: filepath.Join(base, "s")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.start(o)
	t.Cleanup(r.stop)
	return r
}

func (r *rig) start(o ServerOptions) {
	r.t.Helper()
	o.Dir = func(name string, _ []byte) (string, error) {
		if name != "v" {
			return "", core.ErrNotFound
		}
		return r.dir, nil
	}
	os.Remove(r.socket)
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server, r.grpc = NewServer(o), grpc.NewServer(Tuning()...)
	r.server.Register(r.grpc)
	g := r.grpc
	go g.Serve(trackListener{l, r}) // ends with stop
}

// stop ends the server as a kill would: no session is told.
func (r *rig) stop() {
	r.grpc.Stop()
	r.server.Close()
}

// cut breaks every connection.
func (r *rig) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func (r *rig) endpoint() core.Endpoint {
	return core.Endpoint{Kind: core.EndpointUnix, Address: r.socket, Session: "v"}
}

func (r *rig) open(o Options) *user {
	r.t.Helper()
	c, err := Open(r.t.Context(), r.endpoint(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return &user{t: r.t, c: c}
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(r.path(name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// user makes requests that a test expects to succeed, or to fail with an errno.
type user struct {
	t *testing.T
	c *Client
}

func request(op any) *volumev1.Request {
	r := &volumev1.Request{Caller: &volumev1.Caller{Umask: 0o022}}
	switch op := op.(type) {
	case *volumev1.Walk:
		r.Op = &volumev1.Request_Walk{Walk: op}
	case *volumev1.GetAttr:
		r.Op = &volumev1.Request_GetAttr{GetAttr: op}
	case *volumev1.SetAttr:
		r.Op = &volumev1.Request_SetAttr{SetAttr: op}
	case *volumev1.ReadDir:
		r.Op = &volumev1.Request_ReadDir{ReadDir: op}
	case *volumev1.OpenAt:
		r.Op = &volumev1.Request_OpenAt{OpenAt: op}
	case *volumev1.Read:
		r.Op = &volumev1.Request_Read{Read: op}
	case *volumev1.Write:
		r.Op = &volumev1.Request_Write{Write: op}
	case *volumev1.Commit:
		r.Op = &volumev1.Request_Commit{Commit: op}
	case *volumev1.Release:
		r.Op = &volumev1.Request_Release{Release: op}
	case *volumev1.Forget:
		r.Op = &volumev1.Request_Forget{Forget: op}
	case *volumev1.MakeNode:
		r.Op = &volumev1.Request_MakeNode{MakeNode: op}
	case *volumev1.Symlink:
		r.Op = &volumev1.Request_Symlink{Symlink: op}
	case *volumev1.Link:
		r.Op = &volumev1.Request_Link{Link: op}
	case *volumev1.Rename:
		r.Op = &volumev1.Request_Rename{Rename: op}
	case *volumev1.Unlink:
		r.Op = &volumev1.Request_Unlink{Unlink: op}
	case *volumev1.ReadLink:
		r.Op = &volumev1.Request_ReadLink{ReadLink: op}
	case *volumev1.Fallocate:
		r.Op = &volumev1.Request_Fallocate{Fallocate: op}
	case *volumev1.Seek:
		r.Op = &volumev1.Request_Seek{Seek: op}
	case *volumev1.CopyRange:
		r.Op = &volumev1.Request_CopyRange{CopyRange: op}
	case *volumev1.GetXattr:
		r.Op = &volumev1.Request_GetXattr{GetXattr: op}
	case *volumev1.SetXattr:
		r.Op = &volumev1.Request_SetXattr{SetXattr: op}
	case *volumev1.ListXattr:
		r.Op = &volumev1.Request_ListXattr{ListXattr: op}
	case *volumev1.RemoveXattr:
		r.Op = &volumev1.Request_RemoveXattr{RemoveXattr: op}
	case *volumev1.Lock:
		r.Op = &volumev1.Request_Lock{Lock: op}
	case *volumev1.StatFs:
		r.Op = &volumev1.Request_StatFs{StatFs: op}
	case *volumev1.Barrier:
		r.Op = &volumev1.Request_Barrier{Barrier: op}
	case *volumev1.Reclaim:
		r.Op = &volumev1.Request_Reclaim{Reclaim: op}
	default:
		panic("no such request")
	}
	return r
}

func (u *user) do(op any) *volumev1.Reply {
	u.t.Helper()
	r, err := u.c.Do(u.t.Context(), request(op))
	if err != nil {
		u.t.Fatalf("%T{%v}: %v", op, op, err)
	}
	return r
}

func (u *user) fails(op any, want syscall.Errno) {
	u.t.Helper()
	if _, err := u.c.Do(u.t.Context(), request(op)); err != want {
		u.t.Errorf("%T{%v}: got %v, want %v", op, op, err, want)
	}
}

func (u *user) root() []byte { return u.c.Root().GetHandle() }

// walk returns the object that a name of a directory means.
func (u *user) walk(dir []byte, names ...string) *volumev1.Object {
	u.t.Helper()
	w := &volumev1.Walk{Handle: dir}
	for _, n := range names {
		w.Names = append(w.Names, []byte(n))
	}
	got := u.do(w).GetWalk()
	if got.GetErrno() != 0 || len(got.GetSteps()) != len(names) {
		u.t.Fatalf("walk %q: errno %d after %d steps", names, got.GetErrno(), len(got.GetSteps()))
	}
	return got.GetSteps()[len(names)-1]
}

// create makes a file below the root and opens it for reading and writing.
func (u *user) create(name string) *volumev1.OpenResult {
	u.t.Helper()
	return u.do(&volumev1.OpenAt{
		Parent: u.root(), Name: []byte(name), Flags: syscall.O_RDWR | wireCreate | wireExcl, Mode: 0o644,
	}).GetOpen()
}

func (u *user) read(open uint64) string {
	u.t.Helper()
	return string(u.do(&volumev1.Read{Open: open, Length: maxPayload}).GetRead().GetData())
}

// eventually polls.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}

// recorder keeps events.
type recorder struct {
	mu     sync.Mutex
	number uint64
	lost   int
	events []*volumev1.Event
}

func (r *recorder) on(e *volumev1.Events) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number = e.GetNumber()
	r.events = append(r.events, e.GetEvents()...)
	if e.GetLost() {
		r.lost++
	}
}

// entry tells whether there was an event of a name; gone as said.
func (r *recorder) entry(dir []byte, name string, gone bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		n := e.GetEntry()
		if n != nil && bytes.Equal(n.GetParent(), dir) && string(n.GetName()) == name && n.GetGone() == gone {
			return true
		}
	}
	return false
}

// object tells whether there was an event of an object with another version.
func (r *recorder) object(o *volumev1.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		n := e.GetObject()
		if n != nil && bytes.Equal(n.GetHandle(), o.GetHandle()) && !bytes.Equal(n.GetVersion(), o.GetVersion()) {
			return true
		}
	}
	return false
}

func (r *recorder) last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.number
}

func (r *recorder) losses() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// barrier asks the server, not a client, as a node does.
func (r *rig) barrier() uint64 {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	e, err := r.server.Barrier(ctx, "v")
	if err != nil {
		r.t.Fatal(err)
	}
	return e.Number
}
