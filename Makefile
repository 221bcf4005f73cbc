# make run     start the broker (ARGS="--port 0" passes more options)
# make test    everything that must hold: ruff, mypy, pytest, trial
# make bench   measure beside nats-server (ARGS="--quick"); docs/performance.md has the others
# make clean   remove what the others made
#
# All is kept in .venv here; set PYTHON to choose another interpreter.

ifndef PYTHON
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
VENV := .venv
BIN := $(VENV)/bin
SOURCES := setup.cfg pyproject.toml README.md $(shell find rtmb twisted -name '*.py')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test programs bench clean

run: $(VENV)/.installed
	@exec $(BIN)/twistd -n --pidfile= rtmb $(ARGS)

test: $(VENV)/.installed-test programs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	REQUIRE_ALL_TESTS=1 $(BIN)/python -m pytest $(ARGS)
	rm -rf $(VENV)/trial && mkdir $(VENV)/trial
	cd $(VENV)/trial && SKIP_SLOW_TESTS=1 ../bin/trial rtmb

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info _trial_temp* .hypothesis .pytest_cache .mypy_cache \
		.ruff_cache node_modules twisted/plugins/dropin.cache twistd.pid
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "rtmb needs Python 3.11 or newer, and there is none on the PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Not an editable install: twistd would not find the plugin. `build` goes first, because setuptools
# would install what is left in it from before.
$(VENV)/.installed: $(SOURCES) | $(BIN)/python
	rm -rf build
	$(BIN)/python -m pip install -q .
	@touch $@

$(VENV)/.installed-test: $(SOURCES) | $(BIN)/python
	rm -rf build
	$(BIN)/python -m pip install -q '.[test,spark]'
	@touch $@ $(VENV)/.installed

# The programs that the tests talk to the broker with.
programs:
	@missing=; \
	for pair in telnet:telnet nc:netcat-openbsd node:nodejs npm:npm curl:curl \
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
