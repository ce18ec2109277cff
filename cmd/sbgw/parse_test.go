package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
)

func TestParseSize(t *testing.T) {
	tests := map[string]int64{
		"1": 1, "512m": 512 << 20, "2G": 2 << 30, "4k": 4096, "1t": 1 << 40,
		"0": -1, "-1": -1, "m": -1, "1.5g": -1, "1x": -1, "9999999999t": -1, " 1": -1,
	}
	for in, want := range tests {
		got, err := parseSize(in)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: got %d, %v, want %d", in, got, err, want)
		}
	}
}

func TestParsePort(t *testing.T) {
	tests := map[string]*core.PortMapping{
		"80":       {ContainerPort: 80},
		"8080:80":  {ContainerPort: 80, HostPort: 8080},
		"53/udp":   {ContainerPort: 53, Protocol: "udp"},
		"0":        nil,
		"80:":      nil,
		"x":        nil,
		"80/sctp":  nil,
		"70000":    nil,
		"1:2:3":    nil,
		"80:80/x/": nil,
	}
	for in, want := range tests {
		got, err := parsePort(in)
		if want == nil {
			if err == nil {
				t.Errorf("%q: got %v, want an error", in, got)
			}
			continue
		}
		if diff := cmp.Diff(*want, got); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", in, err, diff)
		}
	}
}

func TestKeyValues(t *testing.T) {
	got, err := keyValues("--env", []string{"A=1", "B=x=y", "C="})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "x=y", "C": ""}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"A", "=1", "", "A=\x00"} {
		if _, err := keyValues("--env", []string{bad}); exitCode(err) != exitUsage {
			t.Errorf("%q: got %v, want a usage error", bad, err)
		}
	}
}
