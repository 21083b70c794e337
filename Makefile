# Two commands do everything, on any machine with Python 3.11 or newer:
#   make demo    the main job on real data, on an embedded PostgreSQL; nothing to install, no Docker
#                (ARGS=--web: with a web page of its database meanwhile)
#   make test    what a change must not break: style, types, import direction, tests on real servers
# Two more for who changes the code:
#   make check     style, types and import direction alone
#   make test-all  every test on every server, including the long ones
#   make frameworks  the tests with Celery, FastStream and others, in an environment beside it; a part of test-all
#   make types     the types of the public names, as mypy and pyright see them; a part of test-all
#   make docs      the documentation as a site, in build/site
#   make matrix    what works on which engine and layout (docs/check.md), with Debian's further servers
#   make compare   other ways to handle a message once, and ours, under the same faults (docs/compare.md)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Processes that share the tests; each starts servers of its own. Much of the tests is waiting, so two cores
# are enough for six.
WORKERS ?= 6

.PHONY: demo test test-all check docs classes collected tests tests-all types matrix benchmark benchmark-brokers benchmark-outbox benchmark-scale benchmark-spark benchmark-status clean compare frameworks release

demo: $(VENV)/ready
	$(BIN)/python -m examples.demo $(ARGS)

test:
	$(MAKE) --jobs 2 check collected classes
	$(MAKE) tests

test-all:
	$(MAKE) --jobs 2 check collected classes
	$(MAKE) types tests-all frameworks

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/ready
	$(BIN)/python -m docs.build

# Tests start hundreds of Python processes, which compile nothing that was compiled before. On a fresh checkout
# each process of the tests would compile all tests, so one does it beside mypy, which uses one core.
collected tests tests-all: export PYTHONDONTWRITEBYTECODE =

collected: $(VENV)/ready
	$(BIN)/python -m pytest --collect-only --quiet --quiet >$@.log || (cat $@.log; exit 1)

# Beside the tests this takes minutes, and two of their processes wait for it.
classes: $(VENV)/ready
	$(BIN)/python -m tests.support.spark.classes

# What fails beside thousands of other tests is run once more alone, and fails the run only if it fails again.
# The end names the tests that this rescued: such a test has a race, or the code has.
tests: PYTEST := $(BIN)/python -m pytest --quick
tests-all: PYTEST := $(BIN)/python -m pytest

tests tests-all: $(VENV)/ready
	$(PYTEST) --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || \
	$(PYTEST) --last-failed --last-failed-no-failures none --maxfail 1 $(ARGS)

types: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --group types
	$(BIN)/python -m pytest tests/typing $(ARGS)

# MySQL comes from the environment or Docker, as for the other tests.
FURTHER := postgresql mariadb-server galera-4 rsync
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

matrix: $(VENV)/ready
	dpkg --status $(FURTHER) >/dev/null 2>&1 || ($(SUDO) apt-get update && $(SUDO) apt-get install --yes $(FURTHER))
	REQUIRE_SERVICES=$${REQUIRE_SERVICES:-postgresql,mariadb,sqlite,pgbouncer},debian,galera \
	$(BIN)/python -m pytest --matrix tests/deployment $(ARGS)

# Whether everything is said that a release has to say; `python -m build` makes its files.
release: $(VENV)/ready
	$(BIN)/python -m pytest --release tests/project/test_release.py $(ARGS)

benchmark: $(VENV)/ready
	$(BIN)/python -m benchmarks.inbox $(ARGS)

benchmark-brokers: $(VENV)/ready
	$(BIN)/python -m benchmarks.brokers $(ARGS)

benchmark-outbox: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable . --group benchmarks-outbox
	$(BIN)/python -m benchmarks.outbox $(ARGS)

benchmark-scale: $(VENV)/ready
	$(BIN)/python -m benchmarks.scale $(ARGS)

benchmark-spark: $(VENV)/ready
	$(BIN)/python -m benchmarks.spark_writer $(ARGS)

benchmark-status: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable . --group benchmarks
	$(BIN)/python -m benchmarks.status $(ARGS)

compare: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable . --group benchmarks
	$(BIN)/python -m benchmarks.compare $(ARGS)

# It sees what the other environment has, so only the frameworks are installed.
FRAMEWORKS := $(VENV)/frameworks

frameworks: $(FRAMEWORKS)/ready
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks $(ARGS)

$(FRAMEWORKS)/ready: $(VENV)/ready
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  >$$($(FRAMEWORKS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/other.pth
	$(FRAMEWORKS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(FRAMEWORKS)/bin/python -m pip install --quiet --group frameworks
	touch $@

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis collected.log
