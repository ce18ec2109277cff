package volume

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// ErrSessionLost is the error of a request whose session was lost under it, as
// the server was restarted or the lease ended. Whether it was carried out is
// unknown.
var ErrSessionLost = errors.New("volume session lost")

// How long requests wait for a lost link before they fail with EIO.
const (
	lookupWait = 10 * time.Second
	changeWait = 20 * time.Second
	dataWait   = 45 * time.Second
)

// Options are the settings of a Client.
type Options struct {
	// Log receives changes of the link's state; nil: nothing.
	Log *slog.Logger
	// OnEvents is called with every frame of events, in order with the replies of
	// the control channel: before a reply that came later is delivered. The first
	// frame, which may come before Open returns, says at which number the session
	// begins; a frame may be empty but for its number. It must not block, nor call
	// the Client.
	OnEvents func(*volumev1.Events)
	// OnSession is called after a reconnect that gave a fresh session, with its
	// welcome: handles and opens of before are void, and what is still needed is to
	// be found again by Reclaim. It may block and call Do. Calls do not overlap.
	OnSession func(*volumev1.HelloResponse)
	// ClientID is sixteen bytes; nil: random.
	ClientID []byte
}

// Client is a session with a volume, over any number of connections. Its methods
// may be called concurrently.
type Client struct {
	endpoint core.Endpoint
	o        Options
	log      *slog.Logger
	dial     func(context.Context, string) (net.Conn, error)
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	// session serialises OnSession.
	session sync.Mutex

	mu     sync.Mutex
	closed bool
	hello  *volumev1.HelloResponse
	link   *link // nil while there is none
	// down is when the link was lost.
	down   time.Time
	event  uint64 // last one seen
	statfs *volumev1.StatFsResult
	lastID uint64
	lastOp uint64
	calls  map[uint64]*call
}

// call is a request that has no reply yet.
type call struct {
	request *volumev1.Request
	data    bool
	wait    time.Duration
	done    chan struct{} // closed when reply or err is set

	// Guarded by Client.mu.
	reply *volumev1.Reply
	err   error
	// abandoned: nobody waits any more, and what the reply brings is given back.
	abandoned bool
}

// Open connects to a volume and begins a session. The context bounds the opening
// only; Close ends the session.
func Open(ctx context.Context, e core.Endpoint, o Options) (*Client, error) {
	dial, err := dialer(e)
	if err != nil {
		return nil, fmt.Errorf("open volume %q: %w", e.Session, err)
	}
	if o.ClientID == nil {
		o.ClientID = make([]byte, 16)
		rand.Read(o.ClientID)
	}
	c := &Client{endpoint: e, o: o, log: logging.OrDiscard(o.Log), dial: dial, calls: map[uint64]*call{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	l, err := c.establish(ctx, nil)
	if err != nil {
		c.cancel()
		return nil, fmt.Errorf("open volume %q: %w", e.Session, err)
	}
	c.install(l)
	c.wg.Go(c.maintain)
	r, err := c.Do(ctx, &volumev1.Request{Op: &volumev1.Request_StatFs{StatFs: &volumev1.StatFs{}}})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("open volume %q: %w", e.Session, err)
	}
	c.setStatFs(r.GetStatFs())
	return c, nil
}

// Hello returns the welcome of the present session.
func (c *Client) Hello() *volumev1.HelloResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello
}

// Root returns the volume's root as it was when the session began.
func (c *Client) Root() *volumev1.Object { return c.Hello().GetRoot() }

// Up tells whether there is a link now.
func (c *Client) Up() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link != nil
}

// StatFs returns the last numbers that the server has told; it never waits.
func (c *Client) StatFs() *volumev1.StatFsResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statfs
}

func (c *Client) setStatFs(st *volumev1.StatFsResult) {
	if st == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statfs = st
}

// Do carries out one request, whose ids it sets and which it owns from then on;
// only the bytes of a write are the caller's again when it returns.
// It blocks until the reply, over lost links too: those it waits for 10 s with a
// lookup, 20 s with a change, 45 s with data, and then fails with EIO. An error
// of the operation is a syscall.Errno, with the reply beside it. With the context
// it ends early; what the reply then brings is given back, and a lock that waits
// is cancelled first. Do never returns before a request it cancelled so is over,
// but for a lost link.
func (c *Client) Do(ctx context.Context, r *volumev1.Request) (*volumev1.Reply, error) {
	k := &call{request: r, done: make(chan struct{})}
	k.data, k.wait = kindOf(r)
	l, err := c.register(k)
	if err != nil {
		return nil, err
	}
	if l != nil {
		l.request(r)
	}
	return c.await(ctx, k)
}

// kindOf tells the channel of a request and how long it waits for a link.
func kindOf(r *volumev1.Request) (data bool, wait time.Duration) {
	switch r.GetOp().(type) {
	case *volumev1.Request_Read, *volumev1.Request_Write, *volumev1.Request_Commit,
		*volumev1.Request_Seek, *volumev1.Request_CopyRange, *volumev1.Request_Fallocate:
		return true, dataWait
	case *volumev1.Request_Walk, *volumev1.Request_GetAttr, *volumev1.Request_ReadDir,
		*volumev1.Request_ReadLink, *volumev1.Request_GetXattr, *volumev1.Request_ListXattr,
		*volumev1.Request_StatFs:
		return false, lookupWait
	}
	return false, changeWait
}

// repeatable requests may run twice. For those that return objects this leaves a
// reference too much, until the session ends.
func repeatable(r *volumev1.Request) bool {
	switch r.GetOp().(type) {
	case *volumev1.Request_Walk, *volumev1.Request_GetAttr, *volumev1.Request_ReadDir,
		*volumev1.Request_ReadLink, *volumev1.Request_GetXattr, *volumev1.Request_ListXattr,
		*volumev1.Request_StatFs, *volumev1.Request_Read, *volumev1.Request_Seek,
		*volumev1.Request_Barrier, *volumev1.Request_Recall, *volumev1.Request_Cancel:
		return true
	}
	return false
}

// register gives a call its ids and returns the link to send it over, nil if it
// will be sent when there is one.
func (c *Client) register(k *call) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fs.ErrClosed
	}
	c.lastID++
	k.request.Id = c.lastID
	k.request.OpId = 0
	if !repeatable(k.request) {
		c.lastOp++
		k.request.OpId = c.lastOp
	}
	c.calls[k.request.Id] = k
	return c.link, nil
}

// await waits for a call's reply.
func (c *Client) await(ctx context.Context, k *call) (*volumev1.Reply, error) {
	timer := time.NewTimer(k.wait)
	defer timer.Stop()
	cancelled := ctx.Done()
	for {
		select {
		case <-k.done:
			return result(k)
		case <-timer.C:
			left := c.patience(k.wait)
			if left <= 0 && c.abandon(k) {
				return nil, syscall.EIO
			}
			timer.Reset(max(left, time.Millisecond))
		case <-cancelled:
			if k.request.GetLock().GetWait() && c.cancelLock(k) {
				cancelled = nil // its answer comes now
				continue
			}
			if c.abandon(k) {
				return nil, context.Cause(ctx)
			}
			<-k.done
			return result(k)
		}
	}
}

func result(k *call) (*volumev1.Reply, error) {
	if k.err != nil {
		return nil, k.err
	}
	if errno := k.reply.GetErrno(); errno != 0 {
		return k.reply, syscall.Errno(errno)
	}
	return k.reply, nil
}

// patience is how much longer to wait for a link that is down.
func (c *Client) patience(wait time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		return wait
	}
	return wait - time.Since(c.down)
}

// abandon stops waiting for a call; false: it is done.
func (c *Client) abandon(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[k.request.GetId()] != k {
		return false
	}
	k.abandoned = true
	return true
}

// cancelLock asks the server to end a wait; false: there is no link.
func (c *Client) cancelLock(k *call) bool {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l == nil {
		return false
	}
	// Not a call of its own: nobody waits for the answer.
	l.send(l.control, &volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Request{Request: &volumev1.Request{
		Op: &volumev1.Request_Cancel{Cancel: &volumev1.Cancel{Request: k.request.GetId()}},
	}}})
	return true
}

// deliver hands a reply to its call.
func (c *Client) deliver(r *volumev1.Reply) {
	c.mu.Lock()
	k := c.calls[r.GetId()]
	delete(c.calls, r.GetId())
	abandoned := k != nil && k.abandoned && !c.closed
	if k != nil {
		k.reply = r
	}
	if abandoned {
		c.wg.Go(func() { c.giveBack(r) })
	}
	c.mu.Unlock()
	if k != nil {
		close(k.done)
	}
}

// giveBack releases what a reply brings that nobody waits for.
func (c *Client) giveBack(r *volumev1.Reply) {
	ctx, cancel := context.WithTimeout(c.ctx, lookupWait)
	defer cancel()
	if id := openIn(r); id != 0 {
		c.Do(ctx, &volumev1.Request{Op: &volumev1.Request_Release{Release: &volumev1.Release{Opens: []uint64{id}}}})
	}
	c.Forget(ctx, ObjectsIn(r)...)
}

func openIn(r *volumev1.Reply) uint64 {
	if id := r.GetOpen().GetOpen(); id != 0 {
		return id
	}
	return r.GetReclaim().GetOpen()
}

// ObjectsIn returns the objects of a reply, each of which counts as a reference.
func ObjectsIn(r *volumev1.Reply) []*volumev1.Object {
	ch := r.GetChange()
	all := []*volumev1.Object{
		r.GetObject(), r.GetOpen().GetObject(), r.GetOpen().GetParent(), r.GetWrite().GetObject(),
		ch.GetObject(), ch.GetParent(), ch.GetNewParent(), ch.GetVictim(),
		r.GetCount().GetObject(), r.GetReclaim().GetObject(),
	}
	all = append(all, r.GetWalk().GetSteps()...)
	for _, e := range r.GetReadDir().GetEntries() {
		all = append(all, e.GetObject())
	}
	out := all[:0]
	for _, o := range all {
		if o != nil {
			out = append(out, o)
		}
	}
	return out
}

// Forget gives one reference to each of the objects back. An error of it costs
// only memory of the server's, until the session ends.
func (c *Client) Forget(ctx context.Context, objects ...*volumev1.Object) {
	if len(objects) == 0 {
		return
	}
	f := &volumev1.Forget{}
	for _, o := range objects {
		f.Handles = append(f.Handles, &volumev1.ForgetOne{Handle: o.GetHandle(), Count: 1})
	}
	c.Do(ctx, &volumev1.Request{Op: &volumev1.Request_Forget{Forget: f}})
}

// acked is the op id up to which every answer has come.
func (c *Client) acked() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.lastOp
	for _, k := range c.calls {
		if id := k.request.GetOpId(); id != 0 {
			n = min(n, id-1)
		}
	}
	return n
}

// fail ends every call with an error.
func (c *Client) fail(err error) {
	c.mu.Lock()
	calls := c.calls
	c.calls = map[uint64]*call{}
	for _, k := range calls {
		k.err = err
	}
	c.mu.Unlock()
	for _, k := range calls {
		close(k.done)
	}
}

// Close ends the session and fails what still runs with fs.ErrClosed. It may be
// called twice.
func (c *Client) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	l := c.link
	c.mu.Unlock()
	if again {
		return nil
	}
	if l != nil {
		l.bye()
	}
	c.cancel()
	c.fail(fs.ErrClosed)
	c.wg.Wait()
	return nil
}
