package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/tests/rig"
)

// The barrier's numbers: 200 pairs of each kind. A held barrier takes a second,
// so the pairs are spread over workspaces that work in parallel.
const (
	barrierSpaces = 20
	barrierPairs  = 10
)

// TestBarrier: files and commands are in order, even while the server's events
// come a second late and the kernel believes what it knows for a second. Without
// the barrier the same look at the same files is stale: the test would see it.
func TestBarrier(t *testing.T) {
	r := rig.New(t, `test_event_delay = "1s"`)
	c := r.Client(t)
	boxes := make([]*client.Box, barrierSpaces)
	for i := range boxes {
		box := create(t, r)
		b, err := c.Get(t.Context(), box.ID)
		if err != nil {
			t.Fatal(err)
		}
		boxes[i] = b
	}

	t.Run("exec then read", func(t *testing.T) {
		var stale atomic.Int64
		var g errgroup.Group
		for _, box := range boxes {
			g.Go(func() error {
				for i := range barrierPairs {
					what, err := execThenRead(t, box, fmt.Sprint("with", i), withBarrier)
					if err != nil {
						return err
					}
					if what != "" {
						stale.Add(1)
						t.Errorf("box %s, pair %d: stale in spite of the barrier: %s", box.ID(), i, what)
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of %d pairs stale with the barrier", stale.Load(), barrierSpaces*barrierPairs)
	})

	t.Run("write then exec", func(t *testing.T) {
		var g errgroup.Group
		for _, box := range boxes {
			g.Go(func() error {
				for i := range barrierPairs {
					if err := writeThenExec(t, box, i); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})

	t.Run("without", func(t *testing.T) {
		stale := 0
		for i := range barrierPairs {
			what, err := execThenRead(t, boxes[0], fmt.Sprint("without", i), withoutBarrier)
			if err != nil {
				t.Fatal(err)
			}
			if what != "" {
				stale++
			}
		}
		t.Logf("%d of %d pairs stale without the barrier", stale, barrierPairs)
		if stale == 0 {
			t.Error("no pair is stale without the barrier: this test would not see a missing one")
		}
	})
}

// A runner runs a script in a box and returns when it has done its work.
type runner func(ctx context.Context, box *client.Box, script string) error

func withBarrier(ctx context.Context, box *client.Box, script string) error {
	res, err := box.Exec(ctx, []string{"sh", "-c", script}, client.ExecOptions{})
	if err != nil || res.ExitCode != 0 {
		return fmt.Errorf("%+v, %w", res, err)
	}
	return nil
}

// withoutBarrier returns on the script's own word: the word that it ended comes
// with the server's event, which the test holds back.
func withoutBarrier(ctx context.Context, box *client.Box, script string) error {
	s, err := box.Stream(ctx, []string{"sh", "-c", script + "; echo done"}, client.ExecOptions{NoBarrier: true})
	if err != nil {
		return err
	}
	defer s.Stdout.Close()
	defer s.Stderr.Close()
	said, err := io.ReadAll(s.Stdout)
	if err != nil || string(said) != "done\n" {
		return fmt.Errorf("the script said %q, %w", said, err)
	}
	return nil
}

// execThenRead looks at files, lets a command in the box change them, and looks
// again. It returns what is stale, if anything.
func execThenRead(t *testing.T, box *client.Box, round string, run runner) (string, error) {
	at := func(name string) string { return filepath.Join(box.Path(), name) }
	short, long := "short\n", "much longer "+round+"\n"
	for _, name := range []string{"grown", "replaced", "removed"} {
		if err := os.WriteFile(at(name), []byte(short), 0o644); err != nil {
			return "", err
		}
	}
	_ = os.Remove(at("made"))
	open, err := os.Open(at("grown"))
	if err != nil {
		return "", err
	}
	defer open.Close()
	if _, err := io.ReadAll(open); err != nil { // the kernel has its page now
		return "", err
	}
	for _, name := range []string{"grown", "replaced", "removed", "made"} {
		_, _ = os.Stat(at(name)) // and every name, with attributes, or that it is absent
	}

	script := fmt.Sprintf("printf '%%s' '%s' > grown; printf '%%s' '%s' > new; mv new replaced; rm removed; mkdir -p made", long, long)
	if err := run(t.Context(), box, script); err != nil {
		return "", fmt.Errorf("exec in %s: %w", box.ID(), err)
	}

	var stale []string
	for _, name := range []string{"grown", "replaced"} {
		if fi, err := os.Stat(at(name)); err != nil || fi.Size() != int64(len(long)) {
			stale = append(stale, fmt.Sprintf("stat of %s: %v, %v", name, fi, err))
		}
		if b, err := os.ReadFile(at(name)); err != nil || string(b) != long {
			stale = append(stale, fmt.Sprintf("content of %s: %q, %v", name, b, err))
		}
	}
	buf := make([]byte, 4096)
	if n, err := open.ReadAt(buf, 0); err != io.EOF || string(buf[:n]) != long {
		stale = append(stale, fmt.Sprintf("content by the open descriptor: %q, %v", buf[:n], err))
	}
	if _, err := os.Lstat(at("removed")); !os.IsNotExist(err) {
		stale = append(stale, fmt.Sprintf("removed is there: %v", err))
	}
	if _, err := os.Lstat(at("made")); err != nil {
		stale = append(stale, fmt.Sprintf("made is not there: %v", err))
	}
	_ = os.Remove(at("made"))
	return strings.Join(stale, "; "), nil
}

// writeThenExec changes files by path and has the box look at once.
func writeThenExec(t *testing.T, box *client.Box, i int) error {
	at := func(name string) string { return filepath.Join(box.Path(), name) }
	want := fmt.Sprintf("written %d\n", i)
	if err := os.WriteFile(at("w.tmp"), []byte(want), 0o644); err != nil {
		return err
	}
	if err := os.Rename(at("w.tmp"), at("w")); err != nil {
		return err
	}
	res, err := box.Exec(t.Context(), []string{"sh", "-c", "cat w; ls w.tmp 2>/dev/null; true"}, client.ExecOptions{})
	if err != nil {
		return fmt.Errorf("exec in %s: %w", box.ID(), err)
	}
	if res.Stdout != want {
		return fmt.Errorf("box %s, pair %d: the command sees %q, want %q", box.ID(), i, res.Stdout, want)
	}
	return nil
}
