package tai_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/core/coretest"
	"github.com/yaoapp/sbgw/plugins/launch"
	"github.com/yaoapp/sbgw/volume"
	"github.com/yaoapp/sbgw/workspace"
)

// binDir has the programs under test as an installation has them: tai, and
// plugins/plugin-tai below it.
var binDir string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	var err error
	if binDir, err = os.MkdirTemp("", "bin"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(binDir)
	for program, out := range map[string]string{"tai": "tai", "plugin-tai": "plugins/plugin-tai"} {
		args := append([]string{"build", "-buildvcs=false", "-o", filepath.Join(binDir, out)}, buildFlags...)
		build := exec.Command("go", append(args, "github.com/yaoapp/sbgw/cmd/"+program)...)
		build.Env = append(os.Environ(), buildEnv)
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build %s: %w\n%s", program, err, out)
		}
	}
	code := m.Run()
	if code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// needRoot skips where no box can be made.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("boxes need root")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("no runc on this machine")
	}
}

// stateDir returns a short state directory. After the test its nodes are ended,
// and whatever else runs there is an error.
func stateDir(t *testing.T) string {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("/var/tmp", "pt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer os.RemoveAll(dir)
		locks, _ := filepath.Glob(filepath.Join(dir, "pools/*/node.lock"))
		for _, l := range locks {
			if pid := readPID(t, l); running(pid) {
				syscall.Kill(pid, syscall.SIGTERM)
				eventually(t, "the node's end", func() bool { return !running(pid) })
			}
		}
		for _, pid := range processesOf(dir) {
			cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d is left: %q", pid, cmd)
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(dir)) {
			t.Errorf("mounts of %s are left (%v)", dir, err)
		}
	})
	return dir
}

func readPID(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return pid
}

// running tells whether a process is there and not only waiting to be reaped.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// processesOf returns the processes that have a path of dir on their command line.
func processesOf(dir string) []int {
	var pids []int
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(data, []byte(dir)) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(file, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s did not come true", what)
		}
	}
}

// launcher runs plugin-tai until the test ends.
func launcher(t *testing.T, state string) *launch.Launcher {
	t.Helper()
	l := launch.New(launch.Options{
		Dir: filepath.Join(binDir, "plugins"), StateDir: state, Gateway: "test",
		Hide: []string{state},
	})
	t.Cleanup(l.Shutdown)
	return l
}

func local(options map[string]any) core.Pool {
	return core.Pool{Name: "p", Addr: "local", Options: options}
}

// open opens pool p with a launcher of its own.
func open(t *testing.T, state string) (*launch.Launcher, core.Backend) {
	t.Helper()
	l := launcher(t, state)
	b, err := l.Open(t.Context(), local(nil))
	if err != nil {
		t.Fatal(err)
	}
	return l, b
}

// files reaches a volume through its node.
func files(t *testing.T, e core.Endpoint) workspace.FS {
	t.Helper()
	c, err := volume.Open(t.Context(), e, volume.Options{})
	if err != nil {
		t.Fatalf("open volume: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return volume.NewFS(c)
}

func TestConformance(t *testing.T) {
	state := stateDir(t)
	coretest.Run(t, coretest.Harness{
		Open: func(t *testing.T) core.Backend {
			_, b := open(t, state)
			return b
		},
		Files: files,
		Image: "host",
	})
}
