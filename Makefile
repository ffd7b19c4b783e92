# `make demo` and `make test` are the two commands to know; `make` alone lists the rest.
# Variables, on the command line or in the environment: MODEL, PORT, QUESTION, TESTARGS, CARGOFLAGS.

MODEL ?=
PORT ?= 8000
QUESTION ?= Why is the sky blue?
TESTARGS ?=
# The committed Cargo.lock is what was tested.
CARGOFLAGS ?= --locked

CARGO_TARGET_DIR ?= target
BIN = $(CARGO_TARGET_DIR)/release

# Recipes read these from the environment, so that a question may hold quotes.
demo serve: export MODEL := $(MODEL)
demo serve: export PORT := $(PORT)
demo serve: export QUESTION := $(QUESTION)
DEMO = model=$${MODEL:-$$(scripts/get-model smollm2)} && exec scripts/demo --bin '$(BIN)' --model "$$model"

.DEFAULT_GOAL = help
.PHONY: help setup build demo serve test lint clean
# Two cargo builds at once would only wait for each other.
.NOTPARALLEL:

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16
	@echo
	@echo '  Variables: MODEL=file.gguf (demo, serve)  PORT=8000 (serve)  QUESTION="..." (demo)  TESTARGS="..." (test)'

setup: ## install what a build needs, or say what is missing
	@scripts/setup

build: setup ## build onebit and onebit-prefill
	cargo build --release $(CARGOFLAGS)

demo: build ## start the hybrid server, ask one question, show the handoff, stop
	@$(DEMO) --question "$$QUESTION"

serve: build ## the same server on PORT until Ctrl-C, with a curl line to try
	@$(DEMO) --port "$$PORT" --keep

test: ## every test, the ones with real models and with real clients too
	@scripts/setup --test
	@scripts/test $(CARGOFLAGS) $(TESTARGS)

lint: setup ## formatting and clippy, warnings are errors
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets $(CARGOFLAGS) -- -D warnings

clean: ## remove what was built (the models stay in the cache)
	cargo clean
