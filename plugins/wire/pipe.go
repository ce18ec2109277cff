package wire

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"syscall"

	"github.com/yaoapp/sbgw/internal/logging"
)

// watchGateway ends this process when the gateway's end of the inherited pipe is
// closed, which the kernel does even for a gateway that was killed. Nothing is
// cleaned up on the way: what a driver has outside of its process has to stand a
// SIGKILL anyway.
func watchGateway(log *slog.Logger) {
	pipe, err := gatewayPipe()
	if err != nil {
		log.Error("gateway can't be watched", logging.Err, err)
		os.Exit(1)
	}
	if pipe == nil {
		return
	}
	go func() { // for the life of the process
		io.Copy(io.Discard, pipe)
		log.Debug("gateway is gone")
		os.Exit(0)
	}()
}

// gatewayPipe returns the inherited pipe, or nil if there is none. It takes the
// variable and the descriptor away from this process's own children.
func gatewayPipe() (*os.File, error) {
	v := os.Getenv(PipeVar)
	if v == "" {
		return nil, nil
	}
	os.Unsetenv(PipeVar)
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is not the number of an inherited descriptor", PipeVar, v)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("%s: descriptor %d is not a pipe", PipeVar, fd)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "gateway pipe"), nil
}
