package state

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestRecordsSurviveReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	for _, kv := range [][2]string{{"a", "1"}, {"b", ""}, {"c", "3"}, {"a", "2"}} {
		if err := s.Put("box", kv[0], []byte(kv[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete("box", "c"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, path)
	got, err := s.All("box")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"a": []byte("2"), "b": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("All (-want +got):\n%s", diff)
	}
	if v, err := s.Get("box", "a"); err != nil || string(v) != "2" {
		t.Errorf("Get: got %q, %v, want 2", v, err)
	}
}

func TestAbsent(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	if v, err := s.Get("none", "k"); v != nil || err != nil {
		t.Errorf("Get: got %q, %v, want nil, nil", v, err)
	}
	if err := s.Delete("none", "k"); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if m, err := s.All("none"); len(m) != 0 || err != nil {
		t.Errorf("All: got %v, %v, want nothing", m, err)
	}
}

func TestOpenTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	open(t, path)
	if s, err := Open(path); !errors.Is(err, core.ErrConflict) {
		if err == nil {
			s.Close()
		}
		t.Errorf("got %v, want ErrConflict", err)
	}
}
