// Command run runs the project's tests kind by kind, with the race detector, and
// says of each kind how many tests passed, failed and were skipped and how long
// it took. A kind of which every test was skipped has failed: it showed nothing.
// Arguments choose kinds; without any, all are run.
//
// kinds.go says which package belongs to which kind, count.go reads what
// `go test -json` says.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// errFailed: tests failed, and the report has said which; its last line stays last.
var errFailed = errors.New("tests failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if err != errFailed {
			fmt.Fprintln(os.Stderr, "tests:", err)
		}
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	var all tally
	var bad []string
	begin := time.Now()
	for _, k := range chosen {
		t, err := runKind(ctx, k, assigned(packages, k))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		all.add(t)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", k.name, err))
		}
	}
	fmt.Println()
	for _, b := range bad {
		fmt.Println("FAILED", b)
	}
	fmt.Printf("%d kinds in %.0f s\n", len(chosen), time.Since(begin).Seconds())
	fmt.Println(all)
	if len(bad) > 0 {
		return errFailed
	}
	return nil
}

// runKind runs one kind's packages and prints its lines.
func runKind(ctx context.Context, k kind, packages []string) (tally, error) {
	fmt.Printf("\n== %s: %s\n", k.name, k.about)
	if len(packages) == 0 {
		return tally{}, fmt.Errorf("has no packages")
	}
	begin := time.Now()
	args := append([]string{"test", "-json", "-race", "-count=1", "-timeout", k.timeout.String()}, k.flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=1"), k.env...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		return tally{}, err
	}
	if err := cmd.Start(); err != nil {
		return tally{}, err
	}
	c := newCounter(os.Stdout)
	readErr := c.read(out)
	waitErr := cmd.Wait()
	t := c.total
	for _, s := range c.skips {
		fmt.Println("  skipped", s)
	}
	fmt.Printf("%s: %s, %.1f s\n", k.name, t, time.Since(begin).Seconds())
	switch {
	case t.failed > 0:
		return t, fmt.Errorf("%d failed", t.failed)
	case readErr != nil:
		return t, fmt.Errorf("reading go test's report: %w", readErr)
	case waitErr != nil:
		return t, fmt.Errorf("go test: %w", waitErr)
	case t.passed == 0 && t.skipped > 0:
		return t, fmt.Errorf("all %d tests were skipped", t.skipped)
	case t.passed == 0:
		return t, fmt.Errorf("no test ran")
	}
	return t, nil
}

// list returns the import paths of all packages of the module.
func list(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	return strings.Fields(string(out)), nil
}

func choose(names []string) ([]kind, error) {
	if len(names) == 0 {
		return kinds, nil
	}
	var chosen []kind
	for _, n := range names {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == n })
		if i < 0 {
			return nil, fmt.Errorf("no kind of tests is called %q", n)
		}
		chosen = append(chosen, kinds[i])
	}
	return chosen, nil
}
