#!/bin/sh
# Installs what this machine lacks, and only that:
#
#   scripts/setup.sh build   make, Go, certificates: to compile
#   scripts/setup.sh run     also an OCI runtime and FUSE: to run boxes and mounts
#   scripts/setup.sh test    also a C compiler: the race detector needs one
#
# What is there and works is used as it is; nothing is replaced or removed.
# Distribution packages are printed before they are installed. Go, where there is
# none that will do, goes into .cache/ of this tree and nowhere else.
set -eu
cd "$(dirname "$0")/.."

# The Go toolchain to bring where none is new enough: the module
# golang.org/toolchain of this version, by SHA-256 of the zip file. The sums were
# taken from files that `go mod download` had verified against sum.golang.org.
go_version=1.26.8
go_sha256_amd64=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7
go_sha256_arm64=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99

packages=

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
need() { packages="$packages $*"; }

# ---- distribution packages -------------------------------------------------

manager() {
	for m in apt-get dnf apk zypper; do
		if have "$m"; then echo "$m"; return; fi
	done
}

# package prints the distribution's name for what we call $1.
package() {
	case "$1:$(manager)" in
	libc:apt-get) echo libc6-dev ;;
	libc:apk) echo musl-dev ;;
	libc:*) echo glibc-devel ;;
	*) echo "$1" ;;
	esac
}

install_packages() {
	[ -n "$packages" ] || return 0
	names=
	for p in $packages; do names="$names $(package "$p")"; done
	case "$(manager)" in
	apt-get) cmd="apt-get install -y --no-install-recommends --no-upgrade --no-remove" ;;
	dnf) cmd="dnf install -y --setopt=install_weak_deps=False" ;;
	apk) cmd="apk add" ;;
	zypper) cmd="zypper --non-interactive install --no-recommends" ;;
	*) die "missing:$packages. No apt-get, dnf, apk or zypper here: install them by hand and run this again" ;;
	esac
	if [ "$(id -u)" != 0 ]; then
		die "missing:$packages. This step needs root, run it yourself: sudo $cmd$names"
	fi
	say "packages to install:$names"
	if [ "$(manager)" = apt-get ]; then
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -q || say "apt-get update reported errors; going on with the lists there are"
	fi
	$cmd $names || die "installing by '$cmd' did not work; the lines above say why"
	packages=
}

# ---- Go ----------------------------------------------------------------------

# at_least A B: version A is not older than version B.
at_least() {
	[ "$(printf '%s\n%s\n' "$1" "$2" | sort -t. -k1,1n -k2,2n -k3,3n | head -n 1)" = "$2" ]
}

# usable_go prints the path of a Go that compiles this tree: new enough, or 1.21
# and later, which bring the version that go.mod asks for by themselves.
usable_go() {
	want=$(sed -n 's/^go //p' go.mod)
	for g in "$(command -v go || true)" "$PWD/.cache/go/bin/go" /usr/local/go/bin/go /usr/lib/go/bin/go; do
		[ -n "$g" ] && [ -x "$g" ] || continue
		v=$(GOTOOLCHAIN=auto "$g" env GOVERSION 2>/dev/null | sed 's/^go//; s/[^0-9.].*//') || continue
		if [ -n "$v" ] && at_least "$v" "$want"; then echo "$g"; return; fi
	done
}

certificates() {
	[ -n "${SSL_CERT_FILE:-}" ] && return
	for f in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \
		/etc/ssl/ca-bundle.pem /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/ssl/cert.pem; do
		[ -s "$f" ] && return
	done
	return 1
}

unpacker() {
	for u in unzip bsdtar python3; do
		if have "$u"; then echo "$u"; return; fi
	done
}

download() {
	if have curl; then curl -fsSL --retry 3 -o "$2" "$1"; else wget -q -O "$2" "$1"; fi
}

# bring_go puts the toolchain module of the first module proxy that has it into
# .cache/go. A module's zip has no execute bits, so they are set here.
bring_go() {
	case "$(uname -m)" in
	x86_64 | amd64) arch=amd64 sum=$go_sha256_amd64 ;;
	aarch64 | arm64) arch=arm64 sum=$go_sha256_arm64 ;;
	*) die "no pinned Go for $(uname -m): install Go 1.26 or later from https://go.dev/dl" ;;
	esac
	mkdir -p .cache
	zip=.cache/go-$go_version-$arch.zip
	file=golang.org/toolchain/@v/v0.0.1-go$go_version.linux-$arch.zip
	for proxy in $(echo "${GOPROXY:-https://proxy.golang.org}" | tr ',|' '  '); do
		case "$proxy" in off | direct) continue ;; esac
		say "downloading Go $go_version from ${proxy%/}/$file"
		if download "${proxy%/}/$file" "$zip.part"; then mv "$zip.part" "$zip"; break; fi
	done
	[ -s "$zip" ] || die "no module proxy of GOPROXY has Go $go_version: install Go 1.26 or later from https://go.dev/dl"
	if ! echo "$sum  $zip" | sha256sum -c - >/dev/null 2>&1; then
		rm -f "$zip"
		die "the Go that came is not the one pinned here (SHA-256 of $file differs)"
	fi
	rm -rf .cache/go .cache/unpack
	mkdir .cache/unpack
	case "$(unpacker)" in
	unzip) unzip -q "$zip" -d .cache/unpack ;;
	bsdtar) bsdtar -xf "$zip" -C .cache/unpack ;;
	python3) python3 -m zipfile -e "$zip" .cache/unpack ;;
	esac
	mv ".cache/unpack/golang.org/toolchain@v0.0.1-go$go_version.linux-$arch" .cache/go
	rm -rf .cache/unpack "$zip"
	chmod +x .cache/go/bin/* .cache/go/pkg/tool/*/*
}

# ---- what is wanted, and the steps after the packages -------------------------

want_build() {
	have make || need make
	certificates || need ca-certificates
	if [ -z "$(usable_go)" ]; then
		have curl || have wget || need curl
		[ -n "$(unpacker)" ] || need unzip
	fi
}

want_run() {
	if ! runc --version >/dev/null 2>&1 && ! crun --version >/dev/null 2>&1; then need runc; fi
	have fusermount3 || need fuse3
}

want_test() { compiles || need gcc libc; }

# compiles tells whether the compiler that Go takes can build a C program.
compiles() {
	d=$(mktemp -d)
	echo '#include <stdlib.h>
int main(void) { return 0; }' >"$d/a.c"
	ok=0
	"${CC:-gcc}" -o "$d/a" "$d/a.c" >/dev/null 2>&1 || ok=1
	rm -rf "$d"
	return $ok
}

setup_go() {
	[ -n "$(usable_go)" ] || bring_go
	go=$(usable_go)
	[ -n "$go" ] || die "the Go in .cache/go does not run on this machine: install Go 1.26 or later from https://go.dev/dl"
	{ mkdir -p .cache && echo "$go" >.cache/go-path; } || die "can't write .cache in $PWD: run this as the user that owns the tree, or as root"
}

setup_fuse() {
	[ ! -c /dev/fuse ] || return 0
	if [ "$(id -u)" = 0 ]; then modprobe fuse >/dev/null 2>&1 || true; fi
	[ -c /dev/fuse ] || die "no /dev/fuse: load the kernel's module (sudo modprobe fuse), or give this container the device (--device /dev/fuse)"
}

level=${1:-run}
case "$level" in
build) want_build ;;
run) want_build; want_run ;;
test) want_build; want_run; want_test ;;
*) die "usage: scripts/setup.sh [build|run|test]" ;;
esac
install_packages
setup_go
if [ "$level" != build ]; then setup_fuse; fi
say "$level: all there (Go at $go)"
