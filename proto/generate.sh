#!/bin/sh
# Regenerates the Go code of every .proto file with the pinned local generators.
# Needs protoc (any 3.21 or later); the generators are built from tools.mod.
set -eu
cd "$(dirname "$0")"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
(cd .. && go build -modfile=tools.mod -o "$bin/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc)
PATH="$bin:$PATH" protoc -I . \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	$(find sbgw -name '*.proto' | sort)
