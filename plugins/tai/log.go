package tai

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/yaoapp/sbgw/core"
)

func (p *process) logFile() string { return filepath.Join(p.state, "node.log") }

// maxLog is where the node's log is put aside for a new one.
const maxLog = 16 << 20

// openLog opens the node's log for appending and notes its present length.
func (p *process) openLog() (*os.File, error) {
	path := p.logFile()
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("put the node's log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the node's log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	p.logFrom = st.Size()
	return f, nil
}

// failed is the error of a node that does not run, with what it said last.
func (p *process) failed(why string) error {
	return fmt.Errorf("%w: the node %s; the end of %s: %s", core.ErrUnavailable, why, p.logFile(), p.lastWords())
}

// lastWords returns the end of what the node wrote to its log, on one line.
func (p *process) lastWords() string {
	const most = 600
	f, err := os.Open(p.logFile())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, p.logFrom, maxLog))
	if err != nil {
		return err.Error()
	}
	text := strings.ToValidUTF8(strings.Join(strings.Split(strings.TrimSpace(string(data)), "\n"), " | "), "?")
	switch {
	case text == "":
		return "(nothing)"
	case len(text) > most:
		return "…" + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return text
}
