package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/workspace"
)

// The tour's own workspace and box, the same each time.
const (
	tourWorkspace = "tour"
	tourBox       = "tour-box"
)

// program is what the tour runs; any shell of the image does.
const program = `#!/bin/sh
echo "hello from box $(hostname), user $(id -un)"
echo "written in the box by process $$" > made-in-box.txt
`

// tour shows the main things; each step is printed with its path and its time.
type tour struct {
	w    io.Writer
	c    *client.Client
	step int

	box  *client.Box
	path string // of the workspace
}

func takeTour(ctx context.Context, w io.Writer, c *client.Client) error {
	t := &tour{w: w, c: c}
	for _, step := range []func(context.Context) error{
		t.makeWorkspace, t.makeBox, t.writeProgram, t.runProgram, t.readResult, t.changeInBox,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// did prints a step that began at a time.
func (t *tour) did(began time.Time, path, format string, args ...any) {
	took := time.Since(began)
	t.step++
	fmt.Fprintf(t.w, "%d. %-62s %8.1f ms  %s\n", t.step, fmt.Sprintf(format, args...), float64(took.Microseconds())/1000, path)
}

func (t *tour) show(text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintf(t.w, "     | %s\n", line)
	}
}

func (t *tour) makeWorkspace(ctx context.Context) error {
	began, verb := time.Now(), "created"
	ws, err := t.c.CreateWorkspace(ctx, workspace.Options{ID: tourWorkspace, Name: "the tour's", Pool: "local"})
	if errors.Is(err, core.ErrConflict) {
		verb = "found"
		ws, err = t.c.GetWorkspace(ctx, tourWorkspace)
	}
	if err != nil {
		return err
	}
	if ws.Path == "" {
		return fmt.Errorf("workspace %s: %w: not mounted", ws.ID, core.ErrUnavailable)
	}
	t.path = ws.Path
	t.did(began, t.path, "workspace %s %s on pool %s", ws.ID, verb, ws.Pool)
	return nil
}

func (t *tour) makeBox(ctx context.Context) error {
	began := time.Now()
	box, err := t.c.GetOrCreate(ctx, core.CreateOptions{ID: tourBox, Image: defaultImage, WorkspaceID: tourWorkspace})
	if err != nil {
		return err
	}
	if box.Snapshot().Status != string(core.StatusRunning) {
		if err := box.Start(ctx); err != nil {
			return err
		}
	}
	t.box = box
	t.did(began, core.DefaultWorkDir+" in the box", "box %s runs, image %s, network %s", box.ID(), defaultImage, orDash(box.Snapshot().Network))
	return nil
}

func (t *tour) writeProgram(context.Context) error {
	path := filepath.Join(t.path, "hello.sh")
	began := time.Now()
	if err := os.WriteFile(path, []byte(program), 0o755); err != nil {
		return err
	}
	t.did(began, path, "program written by ordinary path")
	return nil
}

func (t *tour) runProgram(ctx context.Context) error {
	began := time.Now()
	out, err := t.exec(ctx, "sh", "hello.sh")
	if err != nil {
		return err
	}
	t.did(began, core.DefaultWorkDir+"/hello.sh", "program run in the box")
	t.show(out)
	return nil
}

func (t *tour) readResult(context.Context) error {
	path := filepath.Join(t.path, "made-in-box.txt")
	began := time.Now()
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	t.did(began, path, "the file that it wrote, read by ordinary path")
	t.show(string(data))
	return nil
}

// changeInBox reads a file before and after a command of the box changed it: what
// was read before is in this machine's caches.
func (t *tour) changeInBox(ctx context.Context) error {
	path := filepath.Join(t.path, "notes.txt")
	if err := os.WriteFile(path, []byte("first line, by ordinary path\n"), 0o644); err != nil {
		return err
	}
	if _, err := os.ReadFile(path); err != nil {
		return err
	}
	began := time.Now()
	if _, err := t.exec(ctx, "sh", "-c", "echo 'second line, in the box' >> notes.txt"); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(data), "second line") {
		return fmt.Errorf("%s does not show what the box wrote: %q", path, data)
	}
	t.did(began, path, "file changed in the box, seen by ordinary path")
	t.show(string(data))
	return nil
}

func (t *tour) exec(ctx context.Context, cmd ...string) (string, error) {
	r, err := t.box.Exec(ctx, cmd, client.ExecOptions{})
	if err != nil {
		return "", err
	}
	if r.ExitCode != 0 {
		return "", fmt.Errorf("%s: exit code %d: %s", strings.Join(cmd, " "), r.ExitCode, r.Stderr)
	}
	return r.Stdout, nil
}
