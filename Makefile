# make        build the environment in .venv
# make demo   learn templates of handwritten digits from a stream
# make test   run the tests; ARGS= are passed to pytest, as in: make test ARGS="--runslow -k burst"
# make bench  print the tables of speed with rivals, one script after another, in over an hour
# make lint   check style and types
# make format reformat the code in the project's style
# make docs   build the documentation, notebooks executed: docs/_build/html/index.html
# make lock   rewrite requirements.lock after a change of pyproject.toml; with ARGS=--upgrade
#             take the newest versions of all packages
# make package build the wheel and the source distribution, and use them on every Python that is
#             found, newest and lowest versions of what they need
# make audit  look for known vulnerabilities in the packages that requirements.lock pins
# make clean  remove the environment, caches and the built documentation
#
# PYTHON=... names the Python to build the environment with; by default make looks for one.
# With CI=true exactly the packages that requirements.lock pins are installed, with their hashes
# checked. Otherwise any versions in the ranges of pyproject.toml are, as for users of the package.

.DELETE_ON_ERROR:
# Every script prints its rivals in its own table. ARGS= names other scripts.
speed := density burst_accuracy cost_growth two_cores start_up
.PHONY: environment demo test bench lint format docs lock audit package clean

python := .venv/bin/python
installed := .venv/.installed
equipped := .venv/.equipped
documented := .venv/.documented
locking := .venv/.locking
install = $(python) -m pip install --quiet --disable-pip-version-check

environment: $(equipped)

demo: $(installed)
	$(python) examples/digits.py $(ARGS)

# The tests of a file run in one process, because they share fixtures that are expensive to make.
# Memory of compiled code is never freed and reaches gigabytes, so there are at most two processes.
test: $(equipped)
	$(python) -m pytest --numprocesses logical --maxprocesses 2 --dist loadfile $(ARGS)

bench: $(equipped)
	for script in $(or $(ARGS),$(speed)); do $(python) benchmarks/$$script.py || exit; done
	$(python) examples/live_error_rate.py --quick

lint: $(equipped)
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy

format: $(equipped)
	$(python) -m ruff check --fix
	$(python) -m ruff format

docs: $(documented)
	$(python) -m sphinx -W --keep-going -j auto -b html docs docs/_build/html $(ARGS)

lock: $(locking)
	$(python) -m uv pip compile --quiet --universal --python-version 3.12 --generate-hashes \
		--extra dev --extra docs --extra lock --no-emit-package pymc_mcoem \
		--custom-compile-command "make lock" $(ARGS) --output-file requirements.lock pyproject.toml

audit: $(locking)
	@$(python) .ci/audit.py $(ARGS)

package: $(locking)
	@$(python) .ci/package.py

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist output docs/_build docs/generated

# The installation depends on pyproject.toml only: the package itself is installed in place, so that
# a change of its code requires no new installation.
ifeq ($(CI),true)

$(installed): pyproject.toml requirements.lock
	@$(find_or_build)
	@echo "Installing what requirements.lock pins into .venv ..."
	@$(install) --require-hashes --requirement requirements.lock
	@$(install) --no-deps --no-build-isolation --editable .
	@touch $@

$(equipped) $(documented) $(locking): $(installed)
	@touch $@

else

$(installed): pyproject.toml
	@$(find_or_build)
	@echo "Installing pymc_mcoem and what it needs into .venv (half a minute or more the first time) ..."
	@$(install) --editable .
	@touch $@

# Tests and checkers are installed separately, so that a newcomer's demo does not wait for them.
$(equipped): $(installed)
	@echo "Installing what tests and checks need ..."
	@$(install) --editable '.[dev]'
	@touch $@

$(documented): $(installed)
	@echo "Installing what the documentation needs ..."
	@$(install) --editable '.[docs]'
	@touch $@

$(locking): $(installed)
	@echo "Installing what pins and audits ..."
	@$(install) --editable '.[lock]'
	@touch $@

endif

# An existing environment is kept if its Python still runs. Otherwise each candidate is run, not just
# looked up, because a shim of pyenv may stand for a version that is not installed, and a system's
# Python may come without venv. Only builtins of the shell are used until the environment is built.
define find_or_build
	suits() { "$$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' \
		</dev/null >/dev/null 2>&1; }; \
	try() { [ -z "$$found" ] || return 0; looked="$$looked\n  $$1"; if suits "$$1"; then found=$$1; fi; }; \
	if suits $(python) && $(python) -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	found=; looked=; \
	if [ -n "$(PYTHON)" ]; then \
		try "$(PYTHON)"; \
	else \
		for candidate in python3.14 python3.13 python3.12 python3 python; do try "$$candidate"; done; \
		for version in 3.14 3.13 3.12; do \
			for candidate in "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version*/bin/python; do \
				try "$$candidate"; \
			done; \
		done; \
	fi; \
	if [ -n "$$found" ]; then \
		echo "Building .venv with $$found ..."; \
		"$$found" -m venv --clear .venv; \
	elif [ -z "$(PYTHON)" ] && command -v uv >/dev/null; then \
		echo "Building .venv with a Python that uv finds or downloads ..."; \
		uv venv --quiet --clear --seed --python '>=3.12' .venv; \
	else \
		printf '%b\n' "No Python that can build the environment: version 3.12 or later, with the" \
			"modules venv and ensurepip. Looked for:$$looked" >&2; \
		[ -n "$(PYTHON)" ] || printf '%b\n' "  uv" >&2; \
		printf '%b\n' "Install one (https://www.python.org/downloads, pyenv or uv; on Debian and Ubuntu" \
			"python3-venv too) and run make again, or name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
endef
