package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/yaoapp/sbgw/workspace"
)

func newFS(t *testing.T) (*rig, workspace.FS) {
	t.Helper()
	r := newRig(t, ServerOptions{})
	c, err := Open(t.Context(), r.endpoint(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := NewFS(c)
	t.Cleanup(func() { f.Close() })
	return r, f
}

func TestFS(t *testing.T) {
	_, f := newFS(t)
	if err := f.WriteFile("a/b/c.txt", []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := f.MkdirAll("a/empty", 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if err := f.WriteFile(fmt.Sprintf("many/%02d", i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := fstest.TestFS(f, "a/b/c.txt", "a/empty", "many/49"); err != nil {
		t.Error(err)
	}
}

func TestFSWriteFile(t *testing.T) {
	r, f := newFS(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 3<<16+1) // three payloads and a bit
	if err := f.WriteFile("big", big, 0o604); err != nil {
		t.Fatal(err)
	}
	got, err := f.ReadFile("big")
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(big))
	}
	st, err := os.Stat(r.path("big"))
	if err != nil || st.Mode() != 0o604 {
		t.Errorf("got mode %v, %v", st.Mode(), err)
	}
	// The same object to readers that have it open, another one under the name.
	open, err := f.Open("big")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if os.Geteuid() == 0 {
		os.Chown(r.path("big"), 99, 98)
	}
	if err := f.WriteFile("big", []byte("small"), 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(open); err != nil || !bytes.Equal(got, big) {
		t.Errorf("a reader of the old content got %d bytes, %v", len(got), err)
	}
	st, err = os.Stat(r.path("big"))
	if err != nil || st.Mode() != 0o604 || st.Size() != 5 {
		t.Errorf("replaced: got %v, %v", st, err)
	}
	if sys := st.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && (sys.Uid != 99 || sys.Gid != 98) {
		t.Errorf("replaced: owner %d:%d", sys.Uid, sys.Gid)
	}
	left, _ := filepath.Glob(r.path(".sbgw-*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFSLinks(t *testing.T) {
	r, f := newFS(t)
	outside := filepath.Join(filepath.Dir(r.dir), "outside")
	os.WriteFile(outside, []byte("secret"), 0o644)
	os.MkdirAll(r.path("d/e"), 0o755)
	r.write("d/f", "inside")
	for link, target := range map[string]string{
		"abs": outside, "up": "../outside", "d/e/back": "../../d/f", "dir": "d", "loop": "loop",
		"d/dangling": "new", "deep": "dir/../dir/e/back",
	} {
		if err := os.Symlink(target, r.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		want error
	}{
		{"abs", fs.ErrPermission},
		{"up", fs.ErrPermission},
		{"loop", syscall.ELOOP},
		{"d/dangling", fs.ErrNotExist},
		{"d/f/x", syscall.ENOTDIR},
		{"d/e/back", nil},
		{"dir/f", nil},
		{"deep", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := f.ReadFile(tt.name)
			if !errors.Is(err, tt.want) || err == nil && string(got) != "inside" {
				t.Errorf("got %q, %v, want %v", got, err, tt.want)
			}
		})
	}
	if err := f.WriteFile("up", []byte("x"), 0o644); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("wrote through a link out of the volume: %v", err)
	}
	if err := f.WriteFile("d/dangling", []byte("made"), 0o644); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(r.path("d/new")); err != nil || string(got) != "made" {
		t.Errorf("through a link: got %q, %v", got, err)
	}
	if err := f.RemoveAll("dir"); err != nil { // the link, not what it points to
		t.Error(err)
	}
	if _, err := os.Stat(r.path("d/f")); err != nil {
		t.Error(err)
	}
}

func TestFSRemoveAndRename(t *testing.T) {
	r, f := newFS(t)
	for i := range 30 {
		if err := f.WriteFile(fmt.Sprintf("t/%d/%d/f", i%3, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Remove("t"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("got %v, want ENOTEMPTY", err)
	}
	if err := f.Rename("t/0/0/f", "moved"); err != nil {
		t.Error(err)
	}
	if err := f.Rename("no", "moved"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := f.RemoveAll("t"); err != nil {
		t.Error(err)
	}
	if err := f.RemoveAll("t"); err != nil {
		t.Errorf("of what is absent: %v", err)
	}
	if err := f.RemoveAll("no/such/thing"); err != nil {
		t.Errorf("of what is absent: %v", err)
	}
	if err := f.Remove("moved"); err != nil {
		t.Error(err)
	}
	if err := f.Remove("moved"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(r.dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, bad := range []string{"/abs", "../up", "a//b", ""} {
		if err := f.WriteFile(bad, nil, 0o644); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", bad, err)
		}
	}
	for _, err := range []error{f.Remove("."), f.RemoveAll("."), f.Rename(".", "x"), f.Rename("x", ".")} {
		if err == nil {
			t.Error("the root was removed or moved")
		}
	}
	if err := f.MkdirAll("d/e", 0o755); err != nil {
		t.Error(err)
	}
	if err := f.MkdirAll("d/e", 0o755); err != nil {
		t.Errorf("again: %v", err)
	}
	r.write("file", "")
	if err := f.MkdirAll("file/x", 0o755); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: got %v", err)
	}
	if err := f.MkdirAll("file", 0o755); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("over a file: got %v", err)
	}
}

// TestFSGivesReferencesBack: what an FS looked at does not stay at the server.
func TestFSGivesReferencesBack(t *testing.T) {
	r, f := newFS(t)
	for i := range 300 {
		if err := f.WriteFile("f", []byte{byte(i)}, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v := onlySession(t, r).v
	eventually(t, "few objects are known", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.handles) < 4*forgetBatch
	})
}
