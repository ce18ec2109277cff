package coretest

import (
	"testing"

	"github.com/yaoapp/sbgw/core"
)

func (s *suite) files() []testCase {
	return []testCase{
		{"open", s.opensVolume},
		{"bad_name", s.refusesVolumeName},
		{"both_ways", s.carriesBothWays},
		{"shared", s.sharesVolume},
		{"read_only", s.mountsReadOnly},
		{"outlives_box", s.volumeOutlives},
		{"remove", s.removesVolume},
	}
}

func (s *suite) opensVolume(t *testing.T) {
	v := core.VolumeSession(name("ctv"))
	_, err := s.opener(t).OpenVolume(deadline(t), v, false)
	is(t, err, core.ErrNotFound, "open of an absent volume")
	v, first := s.volume(t)
	for _, create := range []bool{true, false} {
		again, err := s.opener(t).OpenVolume(deadline(t), v, create)
		if err != nil {
			t.Fatalf("open again: %v", err)
		}
		if again.Instance != first.Instance || again.Instance == "" {
			t.Errorf("instance: got %q, was %q, want the same and not empty", again.Instance, first.Instance)
		}
	}
}

// refusesVolumeName: what could be taken for a path out of the volumes. A slash
// alone is no harm: a node knows names of two parts.
func (s *suite) refusesVolumeName(t *testing.T) {
	for _, v := range []core.VolumeSession{"", ".", "..", "../escape", "a/../../b", "/abs", "nul\x00"} {
		if _, err := s.opener(t).OpenVolume(deadline(t), v, true); err == nil {
			t.Errorf("open volume %q: got no error", v)
		}
		if err := s.remover(t).RemoveVolume(deadline(t), v); err == nil {
			t.Errorf("remove volume %q: got no error", v)
		}
	}
}

func (s *suite) carriesBothWays(t *testing.T) {
	v, e := s.volume(t)
	st := s.box(t, with(v))
	files := s.h.Files(t, e)
	if err := files.WriteFile("sub/in.txt", []byte("from outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := s.sh(t, st.ID, "cat sub/in.txt"); r.stdout != "from outside" {
		t.Errorf("read in the box: got %+v", r)
	}
	if r := s.sh(t, st.ID, "printf 'from inside' > sub/out.txt && chmod 600 sub/out.txt"); r.exit.Code != 0 {
		t.Fatalf("write in the box: %+v", r)
	}
	data, err := files.ReadFile("sub/out.txt")
	if err != nil || string(data) != "from inside" {
		t.Errorf("read outside: got %q, %v", data, err)
	}
	info, err := files.Stat("sub/out.txt")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode outside: got %v, %v, want 0600", info, err)
	}
}

func (s *suite) sharesVolume(t *testing.T) {
	v, _ := s.volume(t)
	one, two := s.box(t, with(v)), s.box(t, with(v))
	if r := s.sh(t, one.ID, "echo shared > f"); r.exit.Code != 0 {
		t.Fatalf("write in the first box: %+v", r)
	}
	if r := s.sh(t, two.ID, "cat f"); r.stdout != "shared\n" {
		t.Errorf("read in the second box: got %+v", r)
	}
}

func (s *suite) mountsReadOnly(t *testing.T) {
	v, e := s.volume(t)
	st := s.box(t, with(v), func(b *core.BoxSpec) { b.Mounts[0].ReadOnly = true })
	if r := s.sh(t, st.ID, "echo x > f"); r.exit.Code == 0 {
		t.Error("a write to a read-only mount succeeded")
	}
	if err := s.h.Files(t, e).WriteFile("g", []byte("seen"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := s.sh(t, st.ID, "cat g"); r.stdout != "seen" {
		t.Errorf("read of a read-only mount: got %+v", r)
	}
}

func (s *suite) volumeOutlives(t *testing.T) {
	v, _ := s.volume(t)
	one := s.box(t, with(v))
	if r := s.sh(t, one.ID, "echo kept > f"); r.exit.Code != 0 {
		t.Fatalf("write: %+v", r)
	}
	if err := s.b.Remove(deadline(t), core.BoxRef{ID: one.ID}); err != nil {
		t.Fatal(err)
	}
	if r := s.sh(t, s.box(t, with(v)).ID, "cat f"); r.stdout != "kept\n" {
		t.Errorf("read in the next box: got %+v", r)
	}
}

func (s *suite) removesVolume(t *testing.T) {
	v, _ := s.volume(t)
	st := s.box(t, with(v))
	is(t, s.remover(t).RemoveVolume(deadline(t), v), core.ErrConflict, "remove a volume in use")
	if r := s.sh(t, st.ID, "echo x > f && cat f"); r.stdout != "x\n" {
		t.Errorf("use after the refusal: got %+v", r)
	}
	if err := s.b.Remove(deadline(t), core.BoxRef{ID: st.ID}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is absent
		if err := s.remover(t).RemoveVolume(deadline(t), v); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	_, err := s.opener(t).OpenVolume(deadline(t), v, false)
	is(t, err, core.ErrNotFound, "open after remove")
}
