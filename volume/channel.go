package volume

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// maxIdle is how many goroutines of a channel wait for the next request.
const maxIdle = 8

// channel is one stream of a session.
type channel struct {
	s       *session
	stream  volumev1.VolumeService_ChannelServer
	control bool
	wg      *sync.WaitGroup
	// slots has one element for each request that runs until its reply is sent,
	// waits for each that may wait for a later one.
	slots, waits chan struct{}
	// idle takes a request to a goroutine that has run one before: its stack has
	// the size it takes.
	idle   chan *job
	idlers atomic.Int32
	ended  chan struct{}
	closed atomic.Bool

	mu   sync.Mutex // held over a send
	sent uint64     // the last event sent; on a control channel
}

// Channel implements VolumeService. When the client ends the control channel in
// good order, its session ends too; when the connection breaks, it does not.
func (s *Server) Channel(stream volumev1.VolumeService_ChannelServer) error {
	if !s.enter() {
		return status.Error(codes.Unavailable, "the volume server is stopping")
	}
	defer s.wg.Done()

	first, err := stream.Recv()
	if err != nil {
		return err
	}
	attach := first.GetAttach()
	if attach == nil {
		return grpcerr.To(core.Invalid("the first frame of a channel must be attach"))
	}
	ses, err := s.resume(attach.GetSession())
	if err != nil {
		return err
	}
	ses.touch()
	c := &channel{
		s: ses, stream: stream, control: attach.GetControl(), wg: &s.wg,
		slots: make(chan struct{}, maxInFlight), waits: make(chan struct{}, maxWaiting),
		idle: make(chan *job), ended: make(chan struct{}),
	}
	bye, err := c.run(attach.GetAfterEvent())
	if bye && c.control {
		s.endSession(ses)
	}
	return err
}

// run serves the channel to its end; bye means that the client ended it.
// Sends that are stuck end when it has returned, for the stream's context does.
func (c *channel) run(after uint64) (bye bool, err error) {
	if c.control {
		c.takeOver()
	}
	c.sent = max(after, c.s.first)
	if err := c.stream.Send(&volumev1.ChannelResponse{Frame: &volumev1.ChannelResponse_Attached{
		Attached: &volumev1.Attached{Event: c.s.v.feed.number()},
	}}); err != nil {
		return false, err
	}
	if c.control {
		// Tells the client where it stands before anything happens.
		if err := c.stream.Send(events(&volumev1.Events{Number: c.sent})); err != nil {
			return false, err
		}
		c.wg.Go(c.pump)
	}
	read := make(chan error, 1)
	c.wg.Go(func() { read <- c.read() })
	select {
	case err = <-read:
	case <-c.ended:
		err = status.Error(codes.Aborted, "another channel took over")
	case <-c.s.ctx.Done():
		err = status.Error(codes.NotFound, "the session has ended")
	}
	c.closed.Store(true)
	c.end()
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// takeOver makes this the session's only control channel.
func (c *channel) takeOver() {
	c.s.mu.Lock()
	before := c.s.control
	c.s.control = c
	c.s.mu.Unlock()
	if before != nil {
		before.end()
	}
}

// end has run return; again is harmless.
func (c *channel) end() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	select {
	case <-c.ended:
	default:
		close(c.ended)
	}
}

// pump sends events as they come.
func (c *channel) pump() {
	for {
		c.mu.Lock()
		sent := c.sent
		c.mu.Unlock()
		select {
		case <-c.s.v.feed.after(sent):
			if c.send(nil) != nil {
				return
			}
		case <-c.ended:
			return
		}
	}
}

// send sends a frame, on a control channel after every event so far, so that no
// event comes later than a reply that had seen it. A nil frame is only that.
func (c *channel) send(frame *volumev1.ChannelResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return io.ErrClosedPipe
	}
	for c.control {
		next := c.s.v.feed.frame(c.sent, c.s)
		if next == nil {
			break
		}
		if err := c.stream.Send(events(next)); err != nil {
			return err
		}
		c.sent = next.GetNumber()
	}
	if frame == nil {
		return nil
	}
	return c.stream.Send(frame)
}

func events(e *volumev1.Events) *volumev1.ChannelResponse {
	return &volumev1.ChannelResponse{Frame: &volumev1.ChannelResponse_Events{Events: e}}
}

// read starts requests until the stream ends.
func (c *channel) read() error {
	for {
		frame, err := c.stream.Recv()
		if err != nil {
			return err
		}
		c.s.touch()
		switch f := frame.GetFrame().(type) {
		case *volumev1.ChannelRequest_Request:
			if !c.start(f.Request) {
				return status.Error(codes.NotFound, "the session has ended")
			}
		case *volumev1.ChannelRequest_Beat:
			if err := c.beat(f.Beat); err != nil {
				return err
			}
		default:
			return grpcerr.To(core.Invalid("a second attach, or a frame of no kind"))
		}
	}
}

func (c *channel) beat(b *volumev1.Beat) error {
	c.s.acknowledge(b.GetAckedOp())
	numbers, err := c.s.v.statfs()
	if err != nil {
		c.s.log.Debug("statfs", logging.Err, err)
	}
	return c.send(&volumev1.ChannelResponse{Frame: &volumev1.ChannelResponse_Beat{
		Beat: &volumev1.Beat{Event: c.s.v.feed.number(), Statfs: numbers},
	}})
}

// start runs a request beside the others. It blocks while too many run, unless
// the request may have to wait for a later one.
func (c *channel) start(r *volumev1.Request) bool {
	slots := c.slots
	switch r.GetOp().(type) {
	case *volumev1.Request_Lock, *volumev1.Request_Barrier, *volumev1.Request_Recall:
		slots = c.waits
	case *volumev1.Request_Cancel:
		c.s.cancelWait(r.GetCancel().GetRequest())
	}
	select {
	case slots <- struct{}{}:
	case <-c.ended:
		return true
	}
	if !c.s.begin() {
		return false
	}
	j := &job{r, slots}
	select {
	case c.idle <- j:
	default:
		c.wg.Go(func() { c.work(j) })
	}
	return true
}

// job is a request that runs, with the slot that it takes.
type job struct {
	request *volumev1.Request
	slots   chan struct{}
}

// work runs a request, and then others until the channel ends or too many wait.
func (c *channel) work(j *job) {
	for {
		reply := c.s.run(j.request)
		if reply != nil {
			err := c.send(&volumev1.ChannelResponse{Frame: &volumev1.ChannelResponse_Reply{Reply: reply}})
			if err != nil {
				c.s.log.Debug("reply not sent", logging.Err, err)
			}
		}
		<-j.slots
		if c.idlers.Add(1) > maxIdle {
			c.idlers.Add(-1)
			return
		}
		select {
		case j = <-c.idle:
			c.idlers.Add(-1)
		case <-c.ended:
			return
		}
	}
}

// run runs a request, once for each op id, and returns its reply; nil where the
// session ended before there was one. It ends what begin began.
func (s *session) run(r *volumev1.Request) *volumev1.Reply {
	defer s.running.Done()
	id := r.GetOpId()
	if id == 0 {
		return s.evaluate(r)
	}
	a, first, err := s.once(id)
	if err != nil {
		return &volumev1.Reply{Id: r.GetId(), Errno: int32(errnoOf(err)), Detail: "op id"}
	}
	if first {
		a.reply = s.evaluate(r)
		close(a.done)
		return a.reply
	}
	select {
	case <-a.done:
	case <-s.ctx.Done():
		return nil
	}
	reply := proto.CloneOf(a.reply)
	reply.Id = r.GetId()
	return reply
}

// evaluate runs a request.
func (s *session) evaluate(r *volumev1.Request) *volumev1.Reply {
	reply := &volumev1.Reply{Id: r.GetId(), Event: s.v.feed.number()}
	o := &op{s: s, v: s.v, r: r, reply: reply}
	defer o.done()
	if err := o.run(); err != nil {
		reply.Errno = int32(errnoOf(err))
	}
	return reply
}
