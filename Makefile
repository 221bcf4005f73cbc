# make run     start the broker (ARGS="--port 0" passes more options)
# make check   what to run before each commit, in half a minute: ruff, mypy, unit tests
# make test    everything that must hold: the same, and all tests, with pytest and with trial
# make build   compile here the modules that rtmb/compiled.py names, for tests and benchmarks
# make wheels  build wheels for all Pythons of this system into dist/ (on Linux, this needs docker)
# make bench   measure beside nats-server (ARGS="--quick"); docs/performance.md has the others
# make clean   remove what the others made
#
# With RTMB_PURE=1, what is compiled is left aside.
# All is kept in .venv here; set PYTHON to choose another interpreter.

ifndef PYTHON
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
VENV := .venv
BIN := $(VENV)/bin
# What an installation depends on: it only adds this folder to the path, and compiles.
SETUP := setup.cfg setup.py pyproject.toml rtmb/compiled.py
COMPILED := $(shell find rtmb -name '*.pxd' | sed 'p; s/pxd$$/py/')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run check types unit test build wheels programs bench clean

run: $(VENV)/.installed
	@exec $(BIN)/twistd -n --pidfile= rtmb $(ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j2 types unit

types:
	$(BIN)/mypy

unit:
	RTMB_PURE=1 $(BIN)/python -m pytest -q rtmb/test/unit

# Both runners, and both forms of what is compiled.
test: build programs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	REQUIRE_ALL_TESTS=1 $(BIN)/python -m pytest $(ARGS)
	rm -rf $(VENV)/trial && mkdir $(VENV)/trial
	cd $(VENV)/trial && SKIP_SLOW_TESTS=1 RTMB_PURE=1 ../bin/trial rtmb

build: $(VENV)/.installed-test
	$(BIN)/python setup.py -q build_ext --inplace

wheels: $(VENV)/.installed-test
	$(BIN)/python -m pip install -q cibuildwheel
	$(BIN)/python -m cibuildwheel --output-dir dist

bench: build
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv* build dist *.egg-info _trial_temp* .hypothesis .pytest_cache .mypy_cache \
		.ruff_cache node_modules twisted/plugins/dropin.cache twistd.pid
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find rtmb -name '*.so' -delete

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "rtmb needs Python 3.11 or newer, and there is none on the PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SETUP) $(COMPILED) | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.installed-test: $(SETUP) | $(BIN)/python
	RTMB_PURE=1 $(BIN)/python -m pip install -q -e '.[test,spark]'
	@touch $@

# The programs that the tests talk to the broker with.
programs:
	@missing=; \
	for pair in zsh:zsh jq:jq telnet:telnet nc:netcat-openbsd node:nodejs npm:npm curl:curl \
		java:openjdk-17-jre-headless chromium:chromium chromedriver:chromium-driver; do \
		command -v $${pair%%:*} >/dev/null 2>&1 || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends $$missing; \
	else \
		echo "the tests need these programs too: apt-get install$$missing" >&2; exit 1; \
	fi
