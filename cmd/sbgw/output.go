package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
)

// output is the -o flag.
type output struct{ format string }

func (o *output) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "text or json")
}

func (o *output) check() error {
	if o.format != "text" && o.format != "json" {
		return usage("output format %q: need text or json", o.format)
	}
	return nil
}

// print writes v as JSON, or calls text.
func (o *output) print(w io.Writer, v any, text func(w io.Writer)) error {
	if o.format != "json" {
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		text(t)
		return t.Flush()
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// boxView is a box as JSON; fields are only added.
type boxView struct {
	ID          string            `json:"id"`
	Pool        string            `json:"pool"`
	Status      string            `json:"status"`
	Workspace   string            `json:"workspace"`
	Path        string            `json:"path"`
	Owner       string            `json:"owner"`
	Image       string            `json:"image"`
	Policy      string            `json:"policy"`
	Network     string            `json:"network"`
	Reason      string            `json:"reason,omitempty"`
	ExitCode    *int              `json:"exit_code,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Processes   int               `json:"processes"`
	ContainerID string            `json:"container_id"`
	Incarnation string            `json:"incarnation"`
	CreatedAt   time.Time         `json:"created_at"`
	LastActive  time.Time         `json:"last_active"`
}

func viewBox(b *client.Box) boxView {
	i := b.Snapshot()
	return boxView{
		ID: i.ID, Pool: i.Pool, Status: i.Status, Workspace: i.Workspace, Path: b.Path(), Owner: i.Owner, Image: i.Image,
		Policy: string(i.Policy), Network: i.Network, Reason: i.Reason, ExitCode: i.ExitCode, Labels: i.Labels,
		Processes: i.ProcessCount, ContainerID: i.ContainerID, Incarnation: i.Incarnation,
		CreatedAt: i.CreatedAt, LastActive: i.LastActive,
	}
}

// workspaceView is a workspace as JSON; fields are only added.
type workspaceView struct {
	ID        string            `json:"id"`
	Pool      string            `json:"pool"`
	Status    string            `json:"status"`
	Path      string            `json:"path"`
	Name      string            `json:"name"`
	Owner     string            `json:"owner"`
	Labels    map[string]string `json:"labels,omitempty"`
	Boxes     []string          `json:"boxes"`
	CreatedAt time.Time         `json:"created_at"`
}

func viewWorkspace(w *client.Workspace) workspaceView {
	v := workspaceView{
		ID: string(w.ID), Pool: string(w.Pool), Status: w.Status, Path: w.Path, Name: w.Name, Owner: string(w.Owner),
		Labels: w.Labels, Boxes: w.Boxes, CreatedAt: w.CreatedAt,
	}
	if v.Boxes == nil {
		v.Boxes = []string{}
	}
	return v
}

// orDash is for a column that has nothing to say.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// age is a time ago in one unit.
func age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// keyValues reads KEY=value arguments of a flag.
func keyValues(flag string, args []string) (map[string]string, error) {
	m := make(map[string]string, len(args))
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, usage("%s %q: need KEY=value", flag, arg)
		}
		if strings.ContainsRune(arg, 0) {
			return nil, usage("%s %q: has a NUL byte", flag, arg)
		}
		m[key] = value
	}
	return m, nil
}
