package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/yaoapp/sbgw/core"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

func TestOpenRefuses(t *testing.T) {
	r := newRig(t, ServerOptions{})
	tests := []struct {
		name string
		e    core.Endpoint
		want error
	}{
		{"a directory", core.Endpoint{Kind: core.EndpointDir, Address: r.dir}, core.ErrUnsupported},
		{"a long path", core.Endpoint{Kind: core.EndpointUnix, Address: "/" + strings.Repeat("x", 108)}, core.ErrInvalid},
		{"no command", core.Endpoint{Kind: core.EndpointCmd}, core.ErrInvalid},
		{"unknown volume", core.Endpoint{Kind: core.EndpointUnix, Address: r.socket, Session: "no"}, core.ErrNotFound},
		{"nobody there", core.Endpoint{Kind: core.EndpointUnix, Address: r.socket + "x"}, core.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Open(t.Context(), tt.e, Options{})
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err == nil {
				c.Close()
			}
		})
	}
}

// TestReplayIsExact cuts the connections again and again while files are made
// and written: each create happens once, and nothing is missing.
func TestReplayIsExact(t *testing.T) {
	r, u := oneUser(t)
	const workers, each = 4, 60
	stop, answered := make(chan struct{}), make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() { // by progress and not by time, so that there is some
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-answered:
			}
			if n%12 == 0 {
				r.cut()
			}
		}
	})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				name := fmt.Sprintf("f-%d-%d", w, i)
				reply, err := u.c.Do(t.Context(), request(&volumev1.OpenAt{
					Parent: u.root(), Name: []byte(name), Flags: syscall.O_RDWR | wireCreate | wireExcl, Mode: 0o644,
				}))
				if err != nil {
					t.Errorf("create %s: %v", name, err)
					return
				}
				answered <- struct{}{}
				open := reply.GetOpen().GetOpen()
				for range 3 {
					if _, err := u.c.Do(t.Context(), request(&volumev1.Write{Open: open, Data: []byte("x"), Append: true})); err != nil {
						t.Errorf("append to %s: %v", name, err)
					}
					answered <- struct{}{}
				}
				if _, err := u.c.Do(t.Context(), request(&volumev1.Release{Opens: []uint64{open}})); err != nil {
					t.Errorf("release %s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	cutter.Wait()
	for w := range workers {
		for i := range each {
			name := fmt.Sprintf("f-%d-%d", w, i)
			if got, err := os.ReadFile(r.path(name)); err != nil || string(got) != "xxx" {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
		}
	}
	// Whatever was cut off, every open was released.
	s := onlySession(t, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.opens) != 0 {
		t.Errorf("%d opens are left", len(s.opens))
	}
}

func onlySession(t *testing.T, r *rig) *session {
	t.Helper()
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if len(r.server.sessions) != 1 {
		t.Fatalf("%d sessions, want 1", len(r.server.sessions))
	}
	for _, s := range r.server.sessions {
		return s
	}
	return nil
}

func TestResumeKeepsSession(t *testing.T) {
	r, u, rec := watched(t, ServerOptions{})
	o := u.create("f")
	u.do(lockOf(o.GetOpen(), posix, 1, unix.F_WRLCK))
	before := u.c.Hello()
	r.cut()
	eventually(t, "link is down", func() bool { return !u.c.Up() })
	r.write("meanwhile", "")
	u.do(&volumev1.Write{Open: o.GetOpen(), Data: []byte("after")})
	u.fails(lockOf(o.GetOpen(), posix, 2, unix.F_WRLCK), syscall.EAGAIN)
	if got := u.c.Hello(); !bytes.Equal(got.GetSession(), before.GetSession()) || got.GetFresh() {
		t.Errorf("another session: fresh %v", got.GetFresh())
	}
	eventually(t, "event of the time without a link", func() bool { return rec.entry(u.root(), "meanwhile", false) })
	if rec.losses() != 0 {
		t.Error("events were lost")
	}
}

// TestLockWaitSurvivesCut: a wait goes on at the server, and is granted once.
func TestLockWaitSurvivesCut(t *testing.T) {
	r, u := oneUser(t)
	o := u.create("f").GetOpen()
	u.do(lockOf(o, posix, 1, unix.F_WRLCK))
	granted := make(chan error, 1)
	wait := lockOf(o, posix, 2, unix.F_WRLCK)
	wait.Wait = true
	go func() {
		_, err := u.c.Do(t.Context(), request(wait))
		granted <- err
	}()
	s := onlySession(t, r)
	eventually(t, "it waits", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waits) == 1 })
	r.cut()
	u.do(lockOf(o, posix, 1, unix.F_UNLCK))
	if err := <-granted; err != nil {
		t.Error(err)
	}
	u.fails(lockOf(o, posix, 3, unix.F_WRLCK), syscall.EAGAIN)
}

func TestServerRestart(t *testing.T) {
	r := newRig(t, ServerOptions{})
	sessions := make(chan *volumev1.HelloResponse, 1)
	u := r.open(Options{OnSession: func(h *volumev1.HelloResponse) { sessions <- h }})
	os.MkdirAll(r.path("d"), 0o755)
	r.write("d/keep", "kept")
	r.write("d/swap", "old")
	d := u.walk(u.root(), "d")
	keep, swap := u.walk(d.GetHandle(), "keep"), u.walk(d.GetHandle(), "swap")
	held := lockOf(u.create("locked").GetOpen(), posix, 1, unix.F_WRLCK)
	u.do(held)
	wait := lockOf(held.GetOpen(), posix, 2, unix.F_WRLCK)
	wait.Wait = true
	lost := make(chan error, 1)
	go func() {
		_, err := u.c.Do(t.Context(), request(wait))
		lost <- err
	}()
	s := onlySession(t, r)
	eventually(t, "it waits", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waits) == 1 })

	first := u.c.Hello()
	r.stop()
	r.write("d/new", "new")
	os.Rename(r.path("d/new"), r.path("d/swap"))
	r.start(ServerOptions{})

	hello := <-sessions
	if !hello.GetFresh() || bytes.Equal(hello.GetBootId(), first.GetBootId()) || hello.GetInstance() != first.GetInstance() {
		t.Errorf("got fresh %v, instance %q, was %q", hello.GetFresh(), hello.GetInstance(), first.GetInstance())
	}
	if err := <-lost; !errors.Is(err, ErrSessionLost) {
		t.Errorf("what was in flight: got %v, want ErrSessionLost", err)
	}
	u.fails(&volumev1.GetAttr{Handle: keep.GetHandle()}, syscall.ESTALE)
	root := u.do(&volumev1.Reclaim{Identity: first.GetRoot().GetIdentity()}).GetReclaim().GetObject()
	dir := u.do(&volumev1.Reclaim{Parent: root.GetHandle(), Name: []byte("d"), Identity: d.GetIdentity()}).GetReclaim().GetObject()
	again := u.do(&volumev1.Reclaim{
		Parent: dir.GetHandle(), Name: []byte("keep"), Identity: keep.GetIdentity(), Open: true,
		Flags: syscall.O_RDWR | wireCreate | wireExcl | wireTrunc,
	}).GetReclaim()
	if got := u.read(again.GetOpen()); got != "kept" {
		t.Errorf("got %q", got)
	}
	if !proto.Equal(again.GetObject().GetIdentity(), keep.GetIdentity()) {
		t.Errorf("got %v", again.GetObject().GetIdentity())
	}
	u.fails(&volumev1.Reclaim{Parent: dir.GetHandle(), Name: []byte("swap"), Identity: swap.GetIdentity()}, syscall.ESTALE)
	u.fails(&volumev1.Reclaim{Parent: dir.GetHandle(), Name: []byte("no"), Identity: swap.GetIdentity()}, syscall.ESTALE)
	u.fails(&volumev1.Reclaim{Identity: swap.GetIdentity()}, syscall.ESTALE)
}

func TestLeaseEnds(t *testing.T) {
	r, u := oneUser(t)
	o := u.create("f").GetOpen()
	u.do(lockOf(o, flock, 1, unix.F_WRLCK))
	s := onlySession(t, r)
	s.seen.Store(time.Now().Add(-leaseTime).UnixNano())
	s.checkLease(r.server.endSession)
	f, err := os.Open(r.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("locked after the lease ended: %v", err)
	}
	eventually(t, "a fresh session", func() bool { return u.c.Up() && u.c.Hello().GetFresh() })
	u.fails(&volumev1.Read{Open: o, Length: 1}, syscall.EBADF)
}

func TestCloseEndsSession(t *testing.T) {
	r, u := oneUser(t)
	u.create("f")
	u.c.Close()
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if len(r.server.sessions) != 0 || len(r.server.volumes) != 0 {
		t.Errorf("%d sessions and %d volumes are left", len(r.server.sessions), len(r.server.volumes))
	}
	if _, err := u.c.Do(t.Context(), request(&volumev1.StatFs{})); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got %v, want %v", err, fs.ErrClosed)
	}
}

func TestEventNumbersGrowOverSessions(t *testing.T) {
	r, u := oneUser(t)
	u.create("f")
	r.barrier()
	before, err := r.server.Barrier(t.Context(), "v")
	if err != nil {
		t.Fatal(err)
	}
	u.c.Close()
	idle, err := r.server.Barrier(t.Context(), "v")
	if err != nil || idle.Number < before.Number || idle.Boot != before.Boot || idle.Boot == "" {
		t.Errorf("got %v, %v after %v", idle, err, before)
	}
	rec := &recorder{}
	r.open(Options{OnEvents: rec.on})
	eventually(t, "the first frame", func() bool { return rec.last() >= idle.Number })
}

func TestNoLinkNoEnd(t *testing.T) {
	r, u := oneUser(t)
	r.stop()
	u.c.mu.Lock()
	u.c.down = time.Now()
	u.c.mu.Unlock()
	eventually(t, "link is down", func() bool { return !u.c.Up() })
	u.c.mu.Lock()
	u.c.down = time.Now().Add(-lookupWait + 50*time.Millisecond)
	u.c.mu.Unlock()
	k := &call{request: request(&volumev1.GetAttr{Handle: u.root()}), done: make(chan struct{}), wait: lookupWait}
	if _, err := u.c.register(k); err != nil {
		t.Fatal(err)
	}
	k.wait = 10 * time.Millisecond // its own time is short, that of the link long over
	if _, err := u.c.await(t.Context(), k); err != syscall.EIO {
		t.Errorf("got %v, want EIO", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	if _, err := u.c.Do(ctx, request(&volumev1.GetAttr{Handle: u.root()})); err != why {
		t.Errorf("got %v, want the cause", err)
	}
	if u.c.StatFs().GetBlocks() == 0 {
		t.Error("no numbers without a link")
	}
}

// TestAbandonedOpenIsReleased: nobody knows of the open but the client itself.
func TestAbandonedOpenIsReleased(t *testing.T) {
	r, u := oneUser(t)
	r.write("f", "")
	s := onlySession(t, r)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		k := &call{request: request(&volumev1.OpenAt{Parent: u.root(), Name: []byte("f")}), done: make(chan struct{}), wait: changeWait}
		l, err := u.c.register(k)
		if err != nil {
			t.Fatal(err)
		}
		l.request(k.request)
		cancel()
		if reply, err := u.c.await(ctx, k); err == nil {
			u.do(&volumev1.Release{Opens: []uint64{reply.GetOpen().GetOpen()}})
		}
	}
	eventually(t, "every open is released", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.opens) == 0
	})
}

func TestAnswersAreAcknowledged(t *testing.T) {
	r, u := oneUser(t)
	s := onlySession(t, r)
	for range 3 * beatOps {
		u.do(&volumev1.Release{})
	}
	eventually(t, "few answers are kept", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.answers) <= beatOps
	})
}

// TestCommandEndpoint reaches the server through a process's standard input and
// output: this binary, as a pipe to the socket.
func TestCommandEndpoint(t *testing.T) {
	r := newRig(t, ServerOptions{})
	e := core.Endpoint{Kind: core.EndpointCmd, Session: "v", Argv: []string{
		"env", pipeTo + "=" + r.socket, os.Args[0],
	}}
	c, err := Open(t.Context(), e, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	u := &user{t: t, c: c}
	u.create("f")
	if _, err := os.Stat(r.path("f")); err != nil {
		t.Error(err)
	}
}

// pipeTo names the socket that a process of this binary connects its standard
// input and output to.
const pipeTo = "SBGW_TEST_PIPE"

func pipe(socket string) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		io.Copy(conn, os.Stdin)
		os.Exit(0)
	}()
	io.Copy(os.Stdout, conn)
}

// TestRawChannel speaks to the server without our client.
func TestRawChannel(t *testing.T) {
	r := newRig(t, ServerOptions{})
	dial, err := dialer(r.endpoint())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connect(dial)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	api := volumev1.NewVolumeServiceClient(conn)
	for _, h := range []*volumev1.HelloRequest{
		{}, {Version: 2, ClientId: make([]byte, 16), Volume: "v"}, {Version: 1, Volume: "v"},
		{Version: 1, ClientId: make([]byte, 16), Volume: "no"},
	} {
		if _, err := api.Hello(t.Context(), h); err == nil {
			t.Errorf("hello %v was taken", h)
		}
	}
	hello, err := api.Hello(t.Context(), &volumev1.HelloRequest{Version: 1, ClientId: make([]byte, 16), Volume: "v"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := firstReply(t, api, &volumev1.ChannelRequest{}); err == nil {
		t.Error("a first frame that is no attach was taken")
	}
	attach := func(id []byte) *volumev1.ChannelRequest {
		return &volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Attach{Attach: &volumev1.Attach{Session: id, Control: true}}}
	}
	if _, err := firstReply(t, api, attach([]byte("forged"))); err == nil {
		t.Error("a forged session was taken")
	}
	stream, err := firstReply(t, api, attach(hello.GetSession()))
	if err != nil {
		t.Fatal(err)
	}
	// The same op id twice, and one that was acknowledged.
	mkdir := func(id, op uint64) *volumev1.ChannelRequest {
		req := request(&volumev1.MakeNode{Parent: hello.GetRoot().GetHandle(), Name: []byte("d"), Mode: unix.S_IFDIR | 0o755})
		req.Id, req.OpId = id, op
		return &volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Request{Request: req}}
	}
	first, second := ask(t, stream, mkdir(1, 1)), ask(t, stream, mkdir(2, 1))
	if first.GetErrno() != 0 || second.GetErrno() != 0 || !proto.Equal(first.GetChange(), second.GetChange()) {
		t.Errorf("replay: got %v, then %v", first, second)
	}
	stream.Send(&volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Beat{Beat: &volumev1.Beat{AckedOp: 1}}})
	if got := ask(t, stream, mkdir(3, 1)); syscall.Errno(got.GetErrno()) != syscall.EINVAL {
		t.Errorf("an acknowledged op id: got %v", got)
	}
	if got := ask(t, stream, mkdir(4, 2)); syscall.Errno(got.GetErrno()) != syscall.EEXIST {
		t.Errorf("another op id: got %v", got)
	}
	unknown := &volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Request{Request: &volumev1.Request{Id: 5}}}
	if got := ask(t, stream, unknown); syscall.Errno(got.GetErrno()) != syscall.ENOSYS {
		t.Errorf("unknown request: got %v", got)
	}
	stream.CloseSend()
	for err = nil; err == nil; _, err = stream.Recv() {
	}
	if err != io.EOF {
		t.Errorf("got %v, want a good end", err)
	}
}

type rawStream = grpc.BidiStreamingClient[volumev1.ChannelRequest, volumev1.ChannelResponse]

func firstReply(t *testing.T, api volumev1.VolumeServiceClient, first *volumev1.ChannelRequest) (rawStream, error) {
	t.Helper()
	stream, err := api.Channel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream.Send(first)
	_, err = stream.Recv()
	return stream, err
}

func ask(t *testing.T, stream rawStream, r *volumev1.ChannelRequest) *volumev1.Reply {
	t.Helper()
	if err := stream.Send(r); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if reply := got.GetReply(); reply != nil {
			return reply
		}
	}
}

func BenchmarkGetAttr(b *testing.B) {
	base := b.TempDir()
	socket := base + "/s"
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(ServerOptions{Dir: func(string, []byte) (string, error) { return base, nil }})
	g := grpc.NewServer(Tuning()...)
	s.Register(g)
	go g.Serve(l)
	defer s.Close()
	defer g.Stop()
	c, err := Open(b.Context(), core.Endpoint{Kind: core.EndpointUnix, Address: socket, Session: "v"}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	os.WriteFile(base+"/f", nil, 0o644)
	reply, err := c.Do(b.Context(), request(&volumev1.Walk{Handle: c.Root().GetHandle(), Names: [][]byte{[]byte("f")}}))
	if err != nil {
		b.Fatal(err)
	}
	h := reply.GetWalk().GetSteps()[0].GetHandle()
	for b.Loop() {
		if _, err := c.Do(b.Context(), request(&volumev1.GetAttr{Handle: h})); err != nil {
			b.Fatal(err)
		}
	}
}
