//go:build race

package tai_test

// With the race detector, the program under test has it too.
var buildFlags = []string{"-race"}

const buildEnv = "CGO_ENABLED=1"
