package main

import (
	"strings"
	"time"
)

const module = "github.com/yaoapp/sbgw/"

// A kind is a group of packages that is judged as one.
type kind struct {
	name    string
	about   string
	under   []string // folders; none: whatever no other kind has
	timeout time.Duration
	flags   []string
	like    string   // run that kind's packages, again
	env     []string // of go test and everything under it
}

// oneByOne keeps packages that start real processes and count seconds from
// disturbing each other.
var oneByOne = []string{"-p", "1"}

var kinds = []kind{
	{name: "arch", about: "what the tree itself must look like", under: []string{"tests/arch"}, timeout: 5 * time.Minute},
	{name: "unit", about: "packages by themselves", timeout: 10 * time.Minute},
	{name: "mount", about: "real FUSE mounts", under: []string{"fusefs"}, timeout: 10 * time.Minute, flags: oneByOne},
	{name: "mount-1cpu", about: "the same on one processor", like: "mount", timeout: 10 * time.Minute, flags: oneByOne, env: []string{"GOMAXPROCS=1"}},
	{name: "box", about: "a node with real containers", under: []string{"tai"}, timeout: 10 * time.Minute, flags: oneByOne},
	{name: "plugin", about: "real plugin processes and the backend suite", under: []string{"plugins", "core/coretest"}, timeout: 10 * time.Minute, flags: oneByOne},
	{name: "posix", about: "what POSIX says, on a mounted volume", under: []string{"tests/posix"}, timeout: 10 * time.Minute},
	{name: "e2e", about: "the whole system, embedded and by its command line", under: []string{"gateway", "tests/e2e"}, timeout: 10 * time.Minute, flags: oneByOne},
	{name: "fault", about: "processes killed in the middle of work", under: []string{"tests/fault"}, timeout: 15 * time.Minute},
}

// assigned returns those of the packages that belong to k.
func assigned(packages []string, k kind) []string {
	name := k.name
	if k.like != "" {
		name = k.like
	}
	var own []string
	for _, p := range packages {
		if kindOf(p) == name {
			own = append(own, p)
		}
	}
	return own
}

func kindOf(pkg string) string {
	folder := strings.TrimPrefix(pkg, module) + "/"
	rest := ""
	for _, k := range kinds {
		if len(k.under) == 0 && k.like == "" {
			rest = k.name
		}
		for _, u := range k.under {
			if strings.HasPrefix(folder, u+"/") {
				return k.name
			}
		}
	}
	return rest
}
