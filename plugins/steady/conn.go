package steady

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DialOptions returns the options of connections to what may be lost. A call
// under which the connection is closed, because the other end is given up, then
// ends as one whose transport broke; gRPC calls it canceled, as if by its caller.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return closedIsLost(ctx, invoke(ctx, method, req, reply, cc, o...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, d, cc, method, o...)
			if err != nil {
				return nil, closedIsLost(ctx, err)
			}
			return stream{s, ctx}, nil
		}),
	}
}

// stream is a client's stream with that rule. It has the caller's context beside
// it, because the stream's own ends with the connection.
type stream struct {
	grpc.ClientStream
	ctx context.Context
}

func (s stream) RecvMsg(m any) error { return closedIsLost(s.ctx, s.ClientStream.RecvMsg(m)) }
func (s stream) SendMsg(m any) error { return closedIsLost(s.ctx, s.ClientStream.SendMsg(m)) }

func closedIsLost(ctx context.Context, err error) error {
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		return status.Error(codes.Unavailable, status.Convert(err).Message())
	}
	return err
}
