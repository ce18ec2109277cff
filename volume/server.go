package volume

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	// protocolVersion is the one version there is.
	protocolVersion = 1
	// maxPayload bounds the bytes of one read or write.
	maxPayload = 1 << 20
	// maxInFlight bounds the requests of a channel that run at once.
	maxInFlight = 256
	// leaseTime is how long a session lives without a frame.
	leaseTime = 30 * time.Second
	// maxSessions bounds the sessions of a server.
	maxSessions = 4096

	windowSize = 8 << 20
	// maxMessage has room for a payload with its header.
	maxMessage = maxPayload + 1<<16
)

// ServerOptions say what a Server serves.
type ServerOptions struct {
	// Dir returns the directory of a volume. Its error is the client's answer.
	Dir func(volume string, token []byte) (string, error)
	// Log receives what an operator wants to know; nil: nothing.
	Log *slog.Logger
	// EventDelay holds back what the watch tells, cookies of barriers too. For tests.
	EventDelay time.Duration
}

// Server serves volumes. Its event numbers only grow for as long as it lives.
type Server struct {
	volumev1.UnimplementedVolumeServiceServer

	o     ServerOptions
	boot  []byte
	lease time.Duration
	wg    sync.WaitGroup // channels

	mu       sync.Mutex
	closed   bool
	volumes  map[string]*volume
	sessions map[string]*session
	// numbers has the last event number of volumes that are not open.
	numbers map[string]uint64
}

var _ volumev1.VolumeServiceServer = (*Server)(nil)

// NewServer returns a server with a boot id of its own.
func NewServer(o ServerOptions) *Server {
	o.Log = logging.OrDiscard(o.Log)
	sweepCookieDirs()
	boot := make([]byte, 16)
	rand.Read(boot)
	return &Server{
		o: o, boot: boot, lease: leaseTime,
		volumes: map[string]*volume{}, sessions: map[string]*session{}, numbers: map[string]uint64{},
	}
}

// Tuning returns the options that a gRPC server of volumes works well with: wide
// windows for bulk data, and a check of clients that went silent.
func Tuning() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InitialWindowSize(windowSize),
		grpc.InitialConnWindowSize(windowSize),
		grpc.ReadBufferSize(1 << 17),
		grpc.WriteBufferSize(1 << 17),
	}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { volumev1.RegisterVolumeServiceServer(r, s) }

// Close ends every session and waits for their requests. Their clients find
// their sessions gone.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	var all []*session
	for _, ses := range s.sessions {
		all = append(all, ses)
	}
	s.mu.Unlock()
	for _, ses := range all {
		s.endSession(ses)
	}
	s.wg.Wait()
	return nil
}

// Barrier returns an event at or after every change of the volume that was
// complete before the call. It blocks while the watch catches up. A volume that
// nobody uses has nothing to catch up with.
func (s *Server) Barrier(ctx context.Context, name core.VolumeSession) (core.Event, error) {
	s.mu.Lock()
	v := s.volumes[string(name)]
	e := core.Event{Session: name, Boot: hex.EncodeToString(s.boot), Number: s.numbers[string(name)]}
	if v != nil {
		e.Number = v.feed.number()
	}
	s.mu.Unlock()
	if v == nil {
		return e, nil
	}
	number, err := v.barrier(ctx)
	if errors.Is(err, os.ErrClosed) { // its last session ended meanwhile
		return e, nil
	}
	if err != nil {
		return core.Event{}, fmt.Errorf("barrier of volume %q: %w", name, err)
	}
	e.Number = number
	return e, nil
}

// Hello implements VolumeService.
func (s *Server) Hello(_ context.Context, r *volumev1.HelloRequest) (*volumev1.HelloResponse, error) {
	if r.GetVersion() != protocolVersion {
		return nil, grpcerr.To(fmt.Errorf("%w: volume protocol version %d, this server speaks %d",
			core.ErrUnsupported, r.GetVersion(), protocolVersion))
	}
	if n := len(r.GetClientId()); n != 16 {
		return nil, grpcerr.To(core.Invalid("client id of %d bytes, must be 16", n))
	}
	dir, err := s.o.Dir(r.GetVolume(), r.GetToken())
	if err != nil {
		return nil, grpcerr.To(err)
	}
	ses, fresh, err := s.session(r, dir)
	if err != nil {
		return nil, grpcerr.To(err)
	}
	ses.touch()
	return s.welcome(ses, fresh)
}

func (s *Server) welcome(ses *session, fresh bool) (*volumev1.HelloResponse, error) {
	v := ses.v
	v.watch.ensure(v.root, v.dir.fd)
	st, err := statFD(v.dir.fd)
	if err != nil {
		return nil, grpcerr.To(fmt.Errorf("stat volume %q: %w", v.name, err))
	}
	watch := ""
	if v.watch.on {
		watch = "inotify"
	}
	return &volumev1.HelloResponse{
		Version: protocolVersion, Session: []byte(ses.id), BootId: s.boot, Instance: v.instance,
		Root: ses.give(v.root, st), Lease: durationpb.New(s.lease), Grace: durationpb.New(0),
		Limits: &volumev1.Limits{
			MaxPayload: maxPayload, MaxInFlight: maxInFlight, MaxOpenFiles: maxOpens, MaxHandles: maxHandles,
		},
		ServerTime: timestamppb.Now(), Fresh: fresh, Watch: watch,
	}, nil
}

// session finds the session to resume, or makes one. fresh: it is another one
// than was asked for.
func (s *Server) session(r *volumev1.HelloRequest, dir string) (ses *session, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.closed {
		return nil, false, fmt.Errorf("%w: the volume server is stopping", core.ErrUnavailable)
	}
	if asked := string(r.GetSession()); asked != "" {
		ses := s.sessions[asked]
		if ses != nil && ses.client == string(r.GetClientId()) && ses.v.name == r.GetVolume() {
			return ses, false, nil
		}
		fresh = true
	}
	if len(s.sessions) >= maxSessions {
		return nil, false, fmt.Errorf("%w: %d sessions of volumes", core.ErrLimitExceeded, maxSessions)
	}
	v, err := s.volumeLocked(r.GetVolume(), dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", core.ErrNotFound, err)
		}
		return nil, false, err
	}
	ses = newSession(v, r.GetClientId(), s.lease, s.endSession)
	v.mu.Lock()
	v.sessions[ses] = struct{}{}
	v.mu.Unlock()
	s.sessions[ses.id] = ses
	return ses, fresh, nil
}

// volumeLocked returns the open volume of a name, unless its directory is
// another one by now.
func (s *Server) volumeLocked(name, dir string) (*volume, error) {
	v, err := openVolume(name, dir, s.o.Log)
	if err != nil {
		return nil, err
	}
	last := max(s.numbers[name], 1)
	if old := s.volumes[name]; old != nil {
		if old.instance == v.instance {
			v.dir.drop()
			return old, nil
		}
		last = old.feed.number()
	}
	v.start(last, s.o)
	s.volumes[name] = v
	return v, nil
}

// endSession ends a session, and its volume with the last one.
func (s *Server) endSession(ses *session) {
	ses.end()
	v := ses.v
	s.mu.Lock()
	delete(s.sessions, ses.id)
	v.mu.Lock()
	last := len(v.sessions) == 0 && !v.closed
	v.closed = v.closed || last
	v.mu.Unlock()
	if last && s.volumes[v.name] == v {
		s.numbers[v.name] = v.feed.number()
		delete(s.volumes, v.name)
	}
	s.mu.Unlock()
	if last {
		v.close()
	}
}

// enter counts a channel, unless the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

// resume returns the session of an attaching channel.
func (s *Server) resume(id []byte) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.sessions[string(id)]
	if ses == nil || s.closed {
		return nil, grpcerr.To(fmt.Errorf("%w: no such volume session", core.ErrNotFound))
	}
	return ses, nil
}
