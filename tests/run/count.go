package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// tally counts tests; of a test with subtests only these count.
type tally struct{ passed, failed, skipped int }

func (t *tally) add(o tally) {
	t.passed += o.passed
	t.failed += o.failed
	t.skipped += o.skipped
}

// String says the counts as the last line of a run has them.
func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output
	FailedBuild string
	Test        string
	Elapsed     float64
	Output      string
}

// counter turns events into counts and prints what failed.
type counter struct {
	w io.Writer

	total  tally
	skips  []string // name and reason
	pkg    map[string]tally
	output map[string][]string // by package and test; by package being built
	parent map[string]bool     // tests that have subtests
	failed map[string]bool     // tests and packages in which something failed
}

func newCounter(w io.Writer) *counter {
	return &counter{w: w, pkg: map[string]tally{}, output: map[string][]string{}, parent: map[string]bool{}, failed: map[string]bool{}}
}

// read takes events until the end of r. Lines that are none are printed.
func (c *counter) read(r io.Reader) error {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				c.take(e)
			} else {
				fmt.Fprintf(c.w, "%s\n", strings.TrimRight(string(line), "\n"))
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *counter) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		c.output[e.ImportPath] = append(c.output[e.ImportPath], e.Output)
	case "output":
		c.output[key] = append(c.output[key], e.Output)
	case "run":
		if i := strings.LastIndexByte(key, '/'); i > len(e.Package) {
			c.parent[key[:i]] = true
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			c.endPackage(e)
			return
		}
		c.endTest(e, key)
		delete(c.output, key)
	}
}

func (c *counter) endTest(e event, key string) {
	t := c.pkg[e.Package]
	switch {
	case e.Action == "fail":
		c.show(key, "FAIL "+name(e))
		if !c.failed[key] { // else a subtest failed, and was counted
			t.failed++
		}
		c.failed[e.Package] = true
		for i := len(key) - 1; i > len(e.Package); i-- {
			if key[i] == '/' {
				c.failed[key[:i]] = true
			}
		}
	case c.parent[key]:
	case e.Action == "skip":
		t.skipped++
		c.skips = append(c.skips, name(e)+": "+reason(c.output[key]))
	default:
		t.passed++
	}
	c.pkg[e.Package] = t
}

// endPackage prints a package's line. A package that failed without a failed
// test (it did not build, crashed, timed out) counts as one.
func (c *counter) endPackage(e event) {
	t := c.pkg[e.Package]
	short := strings.TrimPrefix(e.Package, module)
	switch {
	case e.Action == "fail":
		if !c.failed[e.Package] {
			t.failed++
			c.show(e.FailedBuild, "FAIL "+short+": does not build")
		}
		c.show(e.Package+" ", "FAIL "+short)
		c.showUnfinished(e.Package)
	case t == tally{}: // no test files
		return
	}
	c.total.add(t)
	fmt.Fprintf(c.w, "  %-32s %s, %.1f s\n", short, t, e.Elapsed)
}

// showUnfinished prints the output of tests that were cut off.
func (c *counter) showUnfinished(pkg string) {
	for key := range c.output {
		if strings.HasPrefix(key, pkg+" ") && len(key) > len(pkg)+1 {
			c.show(key, "UNFINISHED "+strings.TrimPrefix(key, module))
		}
	}
}

func (c *counter) show(key, title string) {
	if len(c.output[key]) == 0 {
		return
	}
	fmt.Fprintf(c.w, "--- %s\n", title)
	for _, o := range c.output[key] {
		fmt.Fprintf(c.w, "    %s", o)
	}
	delete(c.output, key)
}

func name(e event) string { return strings.TrimPrefix(e.Package, module) + " " + e.Test }

// reason is what a skipped test said, without go test's own lines.
func reason(output []string) string {
	var said []string
	for _, o := range output {
		o = strings.TrimSpace(o)
		if o == "" || strings.HasPrefix(o, "=== ") || strings.HasPrefix(o, "--- ") {
			continue
		}
		if _, after, ok := strings.Cut(o, ".go:"); ok {
			_, o, _ = strings.Cut(after, ": ")
		}
		said = append(said, o)
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
