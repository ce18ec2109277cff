package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCounter(t *testing.T) {
	tests := []struct {
		name   string
		events string
		want   tally
		shown  string // part of what is printed
	}{
		{"plain", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}`, tally{passed: 1}, "1 passed, 0 failed, 0 skipped"},
		{"only leaves count", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"run","Package":"p","Test":"A/y"}
{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"skip","Package":"p","Test":"A/y"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}`, tally{passed: 1, skipped: 1}, ""},
		{"a failed subtest counts once", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"output","Package":"p","Test":"A/x","Output":"a.go:1: boom\n"}
{"Action":"fail","Package":"p","Test":"A/x"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`, tally{failed: 1}, "boom"},
		{"a parent that fails by itself counts", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`, tally{passed: 1, failed: 1}, ""},
		{"does not build", `{"Action":"build-output","ImportPath":"p [p.test]","Output":"x.go:1:1: syntax\n"}
{"Action":"build-fail","ImportPath":"p [p.test]"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`, tally{failed: 1}, "syntax"},
		{"cut off", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"half\n"}
{"Action":"fail","Package":"p"}`, tally{failed: 1}, "half"},
		{"no test files", `{"Action":"skip","Package":"p"}`, tally{}, ""},
		{"foreign lines are printed", "warning: x\n", tally{}, "warning: x"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var w bytes.Buffer
			c := newCounter(&w)
			if err := c.read(strings.NewReader(tc.events)); err != nil {
				t.Fatal(err)
			}
			if got := c.total; got != tc.want {
				t.Errorf("counted %v, want %v", got, tc.want)
			}
			if !strings.Contains(w.String(), tc.shown) {
				t.Errorf("printed %q, want %q in it", w.String(), tc.shown)
			}
		})
	}
}

func TestSkipReason(t *testing.T) {
	c := newCounter(&bytes.Buffer{})
	err := c.read(strings.NewReader(`{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"=== RUN   A\n"}
{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:7: needs root\n"}
{"Action":"output","Package":"p","Test":"A","Output":"--- SKIP: A (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"p A: needs root"}, c.skips); diff != "" {
		t.Errorf("skips differ (-want +got):\n%s", diff)
	}
}

func TestKindOf(t *testing.T) {
	tests := map[string]string{
		module + "core":           "unit",
		module + "core/coretest":  "plugin",
		module + "tai/node":       "box",
		module + "fusefs/mountd":  "mount",
		module + "tests/fault":    "fault",
		module + "tests/run":      "unit",
		module + "plugins/launch": "plugin",
	}
	for pkg, want := range tests {
		if got := kindOf(pkg); got != want {
			t.Errorf("kindOf(%q) = %q, want %q", pkg, got, want)
		}
	}
}
