# make demo | test | check | bench. Each creates and fills .venv by itself when needed.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NATIVE := CMakeLists.txt $(wildcard csrc/*/*)

# An NVIDIA driver means that the user's choice of torch counts; without one, a CPU build is pinned.
ifeq ($(shell command -v nvidia-smi 2>/dev/null),)
CONSTRAINT := -c constraints/cpu.txt
endif

.PHONY: demo test check bench clean help

help:            ## list the targets
	@grep -hE '^[a-z]+: .*##|^[a-z]+: +##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): pyproject.toml constraints/cpu.txt $(NATIVE)
	@scripts/install $(VENV) "$(PYTHON)" "$(CONSTRAINT)"
	@touch $@

demo: $(STAMP)   ## the whole loop on this machine's CPU: measure, diagnose, plan, tune, report (about 2 minutes)
	@$(BIN)/fastverify demo $(ARGS)

test: $(STAMP)   ## every test that needs no GPU (under 5 minutes on 2 cores)
	@$(BIN)/python -m pytest $(ARGS)

check: $(STAMP)  ## formatting, lint, types, import rules
	@scripts/check $(BIN)

bench: $(STAMP)  ## all-reduce of every backend this machine can run
	@$(BIN)/fastverify bench all-reduce $(ARGS)

clean:           ## remove what was built and installed here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
