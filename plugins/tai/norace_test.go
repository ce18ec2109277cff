//go:build !race

package tai_test

// The program under test as it is released.
var buildFlags []string

const buildEnv = "CGO_ENABLED=0"
