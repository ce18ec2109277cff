package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	beatEvery = 2 * time.Second
	// beatOps is after how many answers a beat goes out early, so that the server
	// need not keep them.
	beatOps = 512
	// A channel without a frame for this long is dead; on the data channel a frame
	// may take its time.
	controlSilence = 6 * time.Second
	dataSilence    = 20 * time.Second
	attachWait     = 5 * time.Second
	minBackoff     = 50 * time.Millisecond
	maxBackoff     = 2 * time.Second
	byeWait        = time.Second
)

// link is a pair of channels. Both live and die together.
type link struct {
	c             *Client
	hello         *volumev1.HelloResponse
	control, data *lane
	dead          chan struct{}
	die           sync.Once
	cause         error
	ops           atomic.Uint64
	beatNow       chan struct{}
}

// lane is one channel on its own connection.
type lane struct {
	conn   *grpc.ClientConn
	stream volumev1.VolumeService_ChannelClient
	cancel context.CancelFunc
	seen   atomic.Int64 // last frame, in Unix nanoseconds
	ended  chan struct{}

	mu sync.Mutex // held over a send
}

// establish connects, resuming the session of a welcome if there is one.
func (c *Client) establish(ctx context.Context, before *volumev1.HelloResponse) (*link, error) {
	conn, err := connect(c.dial)
	if err != nil {
		return nil, err
	}
	helloCtx, stop := context.WithTimeout(ctx, attachWait)
	defer stop()
	hello, err := volumev1.NewVolumeServiceClient(conn).Hello(helloCtx, &volumev1.HelloRequest{
		Version: protocolVersion, ClientId: c.o.ClientID, Volume: string(c.endpoint.Session),
		Token: c.endpoint.Token, Session: before.GetSession(),
	})
	if err != nil {
		conn.Close()
		return nil, grpcerr.From(err)
	}
	if len(hello.GetRoot().GetHandle()) == 0 || hello.GetLimits().GetMaxPayload() == 0 {
		conn.Close()
		return nil, fmt.Errorf("%w: the server's welcome lacks a root or its limits", core.ErrInvalid)
	}
	l := &link{c: c, hello: hello, dead: make(chan struct{}), beatNow: make(chan struct{}, 1)}
	after := uint64(0)
	if before != nil && !hello.GetFresh() {
		c.mu.Lock()
		after = c.event
		c.mu.Unlock()
	}
	if l.control, err = c.attach(ctx, conn, hello, true, after); err != nil {
		return nil, err
	}
	if conn, err = connect(c.dial); err == nil {
		l.data, err = c.attach(ctx, conn, hello, false, 0)
	}
	if err != nil {
		l.control.close()
		return nil, err
	}
	return l, nil
}

// attach begins a channel on a connection, which is closed if that fails.
func (c *Client) attach(ctx context.Context, conn *grpc.ClientConn, hello *volumev1.HelloResponse, control bool, after uint64) (*lane, error) {
	life, cancel := context.WithCancel(c.ctx)
	n := &lane{conn: conn, cancel: cancel, ended: make(chan struct{})}
	// The stream lives on; only its beginning is bounded.
	limit := time.AfterFunc(attachWait, cancel)
	defer limit.Stop()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()

	stream, err := volumev1.NewVolumeServiceClient(conn).Channel(life)
	if err == nil {
		err = stream.Send(&volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Attach{Attach: &volumev1.Attach{
			Session: hello.GetSession(), Control: control, AfterEvent: after,
		}}})
	}
	if err == nil || errors.Is(err, io.EOF) { // a failed send has its reason in Recv
		var first *volumev1.ChannelResponse
		first, err = stream.Recv()
		if err == nil && first.GetAttached() == nil {
			err = fmt.Errorf("%w: the server did not attach the channel", core.ErrInvalid)
		}
	}
	if err != nil {
		n.close()
		return nil, grpcerr.From(err)
	}
	n.stream = stream
	n.seen.Store(time.Now().UnixNano())
	return n, nil
}

func (n *lane) close() {
	n.cancel()
	n.conn.Close()
}

// install makes l the client's link, sends what has no reply yet, and starts to
// read. With a fresh session what was in flight is lost.
func (c *Client) install(l *link) {
	fresh := l.hello.GetFresh()
	c.mu.Lock()
	c.hello = l.hello
	if fresh {
		c.event = 0
	}
	c.mu.Unlock()
	if fresh {
		c.fail(ErrSessionLost)
	}
	c.wg.Go(l.readControl)
	c.wg.Go(l.readData)
	c.wg.Go(l.beat)

	c.mu.Lock()
	c.link = l
	again := c.unansweredLocked()
	c.mu.Unlock()
	for _, r := range again {
		l.request(r)
	}
	if fresh && c.o.OnSession != nil {
		c.wg.Go(func() {
			c.session.Lock()
			defer c.session.Unlock()
			c.o.OnSession(l.hello)
		})
	}
}

// unansweredLocked returns the requests to send again, in their order. Data is
// copied, for its buffer is the caller's again once the call is abandoned; a
// write that is abandoned already is not sent again.
func (c *Client) unansweredLocked() []*volumev1.Request {
	var out []*volumev1.Request
	for id, k := range c.calls {
		if k.abandoned && k.data {
			delete(c.calls, id)
			continue
		}
		r := k.request
		if k.data {
			r = proto.CloneOf(r)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *volumev1.Request) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out
}

// maintain keeps a link until Close.
func (c *Client) maintain() {
	for {
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		select {
		case <-l.dead:
		case <-c.ctx.Done():
			l.lose(context.Cause(c.ctx))
			return
		}
		c.mu.Lock()
		c.link, c.down = nil, time.Now()
		c.mu.Unlock()
		<-l.control.ended // no events of the old link come beside those of the next
		<-l.data.ended
		if c.ctx.Err() != nil {
			return
		}
		c.log.Warn("volume link lost", "volume", c.endpoint.Session, logging.Err, l.cause)
		next := c.reconnect()
		if next == nil {
			return
		}
		c.log.Info("volume link is back", "volume", c.endpoint.Session, "fresh", next.hello.GetFresh())
		c.install(next)
	}
}

// reconnect tries until there is a link; nil: the client is closed.
func (c *Client) reconnect() *link {
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		l, err := c.establish(c.ctx, c.Hello())
		if err == nil {
			return l
		}
		c.log.Debug("reconnect to volume", "volume", c.endpoint.Session, logging.Err, err)
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// lose ends the link.
func (l *link) lose(err error) {
	l.die.Do(func() {
		l.cause = err
		l.control.close()
		l.data.close()
		close(l.dead)
	})
}

// bye ends the session in good order, if the server answers in time.
func (l *link) bye() {
	if !l.control.mu.TryLock() {
		return // a send is stuck
	}
	err := l.control.stream.CloseSend()
	l.control.mu.Unlock()
	if err != nil {
		return
	}
	timer := time.NewTimer(byeWait)
	defer timer.Stop()
	select {
	case <-l.control.ended:
	case <-timer.C:
	}
}

// request sends a request on the channel for its kind.
func (l *link) request(r *volumev1.Request) {
	n := l.control
	if data, _ := kindOf(r); data {
		n = l.data
	}
	l.send(n, &volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Request{Request: r}})
}

// send sends a frame. A failure ends the link; what has no reply is sent again
// over the next one.
func (l *link) send(n *lane, frame *volumev1.ChannelRequest) {
	n.mu.Lock()
	err := n.stream.Send(frame)
	n.mu.Unlock()
	if err != nil && !errors.Is(err, io.EOF) { // at EOF the reader knows why
		l.lose(grpcerr.From(err))
	}
}

func (l *link) readControl() { l.read(l.control) }
func (l *link) readData()    { l.read(l.data) }

// read delivers what comes on a channel.
func (l *link) read(n *lane) {
	defer close(n.ended)
	for {
		frame, err := n.stream.Recv()
		if err != nil {
			l.lose(grpcerr.From(err))
			return
		}
		n.seen.Store(time.Now().UnixNano())
		switch f := frame.GetFrame().(type) {
		case *volumev1.ChannelResponse_Reply:
			l.c.deliver(f.Reply)
			if l.ops.Add(1)%beatOps == 0 {
				l.wantBeat()
			}
		case *volumev1.ChannelResponse_Events:
			l.events(f.Events)
		case *volumev1.ChannelResponse_Beat:
			l.c.setStatFs(f.Beat.GetStatfs())
		}
	}
}

func (l *link) wantBeat() {
	select {
	case l.beatNow <- struct{}{}:
	default:
	}
}

func (l *link) events(e *volumev1.Events) {
	l.c.mu.Lock()
	l.c.event = max(l.c.event, e.GetNumber())
	l.c.mu.Unlock()
	if l.c.o.OnEvents != nil {
		l.c.o.OnEvents(e)
	}
}

// beat renews the lease, acknowledges answers, and finds channels gone silent.
func (l *link) beat() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if silent(l.control, controlSilence) || silent(l.data, dataSilence) {
				l.lose(fmt.Errorf("%w: the volume server is silent", core.ErrUnavailable))
				return
			}
			// A stuck send must not stop the checks; it ends with the link.
			l.c.wg.Go(func() { l.sendBeat(l.data) })
			l.c.wg.Go(func() { l.sendBeat(l.control) })
		case <-l.beatNow:
			l.c.wg.Go(func() { l.sendBeat(l.control) })
		case <-l.dead:
			return
		}
	}
}

func (l *link) sendBeat(n *lane) {
	l.send(n, &volumev1.ChannelRequest{Frame: &volumev1.ChannelRequest_Beat{
		Beat: &volumev1.Beat{AckedOp: l.c.acked()},
	}})
}

func silent(n *lane, limit time.Duration) bool {
	return time.Since(time.Unix(0, n.seen.Load())) > limit
}
