package procstream

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// maxFrame bounds a frame: a payload of 1 MiB and what surrounds it.
const maxFrame = 2 << 20

// WriteMsg writes m in one Write: four bytes of length, big-endian, then the
// message.
func WriteMsg(w io.Writer, m proto.Message) error {
	buf := make([]byte, 4, 4+proto.Size(m))
	buf, err := proto.MarshalOptions{}.MarshalAppend(buf, m)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	if len(buf)-4 > maxFrame {
		return fmt.Errorf("frame of %d bytes is over the limit of %d", len(buf)-4, maxFrame)
	}
	binary.BigEndian.PutUint32(buf, uint32(len(buf)-4))
	_, err = w.Write(buf)
	return err
}

// ReadMsg reads what WriteMsg wrote. The end of the stream between two frames is
// io.EOF, within one io.ErrUnexpectedEOF.
func ReadMsg(r io.Reader, m proto.Message) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("frame of %d bytes is over the limit of %d", n, maxFrame)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return proto.Unmarshal(buf, m)
}
