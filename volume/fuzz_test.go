package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// FuzzRequest gives a session whatever decodes as a request. Nothing may panic,
// hang, or reach outside of the volume.
func FuzzRequest(f *testing.F) {
	for _, op := range []any{
		&volumev1.Walk{Handle: []byte("r"), Names: [][]byte{[]byte("d"), []byte("f")}},
		&volumev1.OpenAt{Parent: []byte("r"), Name: []byte("n"), Flags: 0o102, Mode: 0o644},
		&volumev1.OpenAt{Handle: []byte("f"), Flags: 2},
		&volumev1.Write{Open: 1, Data: []byte("x"), Append: true},
		&volumev1.Read{Open: 1, Length: 1 << 31},
		&volumev1.ReadDir{Open: 2, Cookie: 1 << 62, Plus: true},
		&volumev1.MakeNode{Parent: []byte("d"), Name: []byte("p"), Mode: unix.S_IFIFO | 0o644},
		&volumev1.Rename{Parent: []byte("r"), Name: []byte("d"), NewParent: []byte("d"), NewName: []byte("d"), Flags: 2},
		&volumev1.Link{Handle: []byte("f"), Parent: []byte("r"), Name: []byte("g")},
		&volumev1.Symlink{Parent: []byte("r"), Name: []byte("l"), Target: []byte("../..")},
		&volumev1.SetAttr{Handle: []byte("f"), Mode: proto.Uint32(0o7777), Size: proto.Uint64(1 << 20), AtimeNow: true},
		&volumev1.SetXattr{Handle: []byte("f"), Name: []byte("user.x"), Value: []byte("v")},
		&volumev1.ListXattr{Handle: []byte("f")},
		&volumev1.Fallocate{Open: 1, Length: 4096, Mode: 3},
		&volumev1.Lock{Open: 1, Kind: 1, Type: 1, End: 1 << 63},
		&volumev1.Commit{Open: 1, Kind: 3, Unlock: true},
		&volumev1.CopyRange{Source: 1, Target: 1, Length: 1 << 50},
		&volumev1.Forget{Handles: []*volumev1.ForgetOne{{Handle: []byte("f"), Count: 1 << 60}}},
		&volumev1.Reclaim{Parent: []byte("r"), Name: []byte("f"), Open: true, Flags: 0o7777777},
		&volumev1.Release{Opens: []uint64{1, 1, 99}},
	} {
		b, err := proto.Marshal(request(op))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &volumev1.Request{}
		if proto.Unmarshal(data, r) != nil || tooLarge(r) {
			return
		}
		base := t.TempDir()
		dir := filepath.Join(base, "v")
		os.MkdirAll(filepath.Join(dir, "d"), 0o755)
		os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o644)
		os.WriteFile(filepath.Join(base, "outside"), []byte("outside"), 0o600)

		v, err := openVolume("v", dir, NewServer(ServerOptions{}).o.Log)
		if err != nil {
			t.Fatal(err)
		}
		v.start(1, ServerOptions{})
		s := newSession(v, make([]byte, 16), leaseTime, func(*session) {})
		v.sessions[s] = struct{}{}
		handles := map[string][]byte{"r": v.root.handle[:]}
		for _, n := range []string{"d", "f"} {
			reply := s.evaluate(request(&volumev1.Walk{Handle: v.root.handle[:], Names: [][]byte{[]byte(n)}}))
			handles[n] = reply.GetWalk().GetSteps()[0].GetHandle()
			s.evaluate(request(&volumev1.OpenAt{Handle: handles[n], Flags: map[string]uint32{"f": 2}[n]}))
		}
		replaceHandles(r.ProtoReflect(), handles)
		s.begin()
		if reply := s.run(r); reply.GetId() != r.GetId() {
			t.Errorf("reply to %d, request %d", reply.GetId(), r.GetId())
		}
		s.end()
		v.close()
		if got, err := os.ReadFile(filepath.Join(base, "outside")); err != nil || string(got) != "outside" {
			t.Errorf("outside: %q, %v", got, err)
		}
		if left, _ := os.ReadDir(base); len(left) != 2 {
			t.Errorf("%d entries beside the volume", len(left))
		}
	})
}

// tooLarge keeps the fuzzer from filling the disk, and from waits.
func tooLarge(r *volumev1.Request) bool {
	const limit = 1 << 30
	return r.GetFallocate().GetLength() > limit || r.GetFallocate().GetOffset() > limit || r.GetLock().GetWait()
}

// replaceHandles puts real handles where the corpus has their short names.
func replaceHandles(m protoreflect.Message, handles map[string][]byte) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				replaceHandles(v.List().Get(i).Message(), handles)
			}
		case fd.Message() != nil && !fd.IsMap():
			replaceHandles(v.Message(), handles)
		case fd.Kind() == protoreflect.BytesKind && !fd.IsList():
			if h, ok := handles[string(v.Bytes())]; ok && fd.Name() != "name" {
				m.Set(fd, protoreflect.ValueOfBytes(h))
			}
		}
		return true
	})
}
