# make up      sets everything up, starts the gateway and takes a short tour
# make test    runs every test; brings and starts what they need, ends by itself
# make down    stops the gateway and its boxes; their files stay
#
# The other targets: build, check, generate, clean, clean-state.

GO      := scripts/go.sh
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION)
FLAGS   := -buildvcs=false -trimpath -ldflags '$(LDFLAGS)'

.DEFAULT_GOAL := build
.PHONY: build up down test check generate clean clean-state setup-build setup-run setup-test

setup-build setup-run setup-test:
	@scripts/setup.sh $(@:setup-%=%)

# The binaries stand alone: no C library is asked for, so they run in any box.
build: setup-build
	CGO_ENABLED=0 $(GO) build $(FLAGS) -o bin/ ./cmd/sbgw ./cmd/tai
	CGO_ENABLED=0 $(GO) build $(FLAGS) -o bin/plugins/ ./cmd/plugin-tai

up: setup-run build
	bin/sbgw up --config sbgw.toml --tour

down:
	@if [ -x bin/sbgw ]; then bin/sbgw down --config sbgw.toml; else echo "nothing to stop: bin/sbgw is not built"; fi

# Tests that run real processes build them for themselves, with the race detector.
test: setup-test
	$(GO) run ./tests/run

check: setup-test
	$(GO) vet ./...
	$(GO) fix -diff ./...
	$(GO) tool -modfile=tools.mod staticcheck ./...
	$(GO) run ./tests/run arch unit

generate:
	PATH="$$(dirname "$$(cat .cache/go-path)"):$$PATH" proto/generate.sh

clean:
	rm -rf bin

# Deletes boxes, workspaces and their files, after a question.
clean-state: down
	@scripts/clean-state.sh
