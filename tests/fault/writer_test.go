package fault

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// logName is the file that the writing program appends to.
const logName = "log"

// pace is the time between two lines; the program is no load test.
const pace = 2 * time.Millisecond

// keep is how many of its small files the program leaves.
const keep = 50

func line(i int) string { return fmt.Sprintf("line %d of the program\n", i) }

// writeUntilEOF works in dir until stdin ends: it appends lines to one open file,
// syncs, and makes, renames, reads and removes small files. It returns the number
// of lines and the first error that any call gave.
func writeUntilEOF(dir string, stdin io.Reader) (n int, err error) {
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for ; ; n++ {
		select {
		case <-end:
			return n, log.Sync()
		case <-tick.C:
		}
		if _, err := log.WriteString(line(n)); err != nil {
			return n, err
		}
		if n%16 == 0 {
			if err := log.Sync(); err != nil {
				return n, err
			}
		}
		if n%8 == 0 {
			if err := smallFile(dir, n); err != nil {
				return n, err
			}
		}
	}
}

// smallFile replaces a file by a new one under the same name, reads it back, and
// removes an older one.
func smallFile(dir string, n int) error {
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("small-%d", i)) }
	tmp := name(n) + ".tmp"
	if err := os.WriteFile(tmp, []byte(line(n)), 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, name(n)); err != nil {
		return err
	}
	got, err := os.ReadFile(name(n))
	if err != nil {
		return err
	}
	if string(got) != line(n) {
		return fmt.Errorf("%s has %q, want %q", name(n), got, line(n))
	}
	if n >= keep*8 {
		return os.Remove(name(n - keep*8))
	}
	return nil
}
