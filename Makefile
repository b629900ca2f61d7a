# `make demo` and `make test` set up all that they need; `make` alone lists what there is.

BIN := .venv/bin
ARGS ?=

# Which tests `make test` runs, as pytest's -m; .ci/run widens it.
ISTHMUS_TEST_MARKS ?= not slow and not root and not strace and not promtool and not browser

# Over how many processes `make test` spreads the tests; 0: all in this one, as a debugger needs it. Tests wait more than
# they compute, so that eight fill two cores. A process that ends amid a test ends the run.
WORKERS ?= 8
SPREAD := --dist loadscope --max-worker-restart=0

# Without byte code on disk every worker and every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# What `make test-fast` runs: pure functions and state machines, contracts on doubles, and the checks of the project.
FAST_TESTS := $(addprefix tests/unit/,config queues sink aae/scheduling repl/model repl/isr repl/controller repl/coordinator) \
	tests/contract tests/project --ignore=tests/project/test_conftest.py --ignore=tests/project/test_environment_script.py

# The dashboard's JavaScript. Deno comes as a Python package, asks no server, and leaves no cache outside of .venv.
PAGES := node/dashboard
export DENO_NO_UPDATE_CHECK := 1
export DENO_DIR := $(CURDIR)/.venv/deno

.PHONY: help venv demo test test-fast test-all lint byte-code docs docs-site screenshots release-check bench bench-peers sim mesh world faults endurance wheel clean

help:
	@echo "make demo      two clusters on this machine, replicated and compared; ARGS=\"--keep\" and others: isthmus demo --help"
	@echo "make test      lint, types, import contracts, and the tests that need minutes, not more; WORKERS=0 runs them in one process"
	@echo "make test-fast pure parts, contracts on doubles, checks of the project: less than a minute"
	@echo "make test-all  the same with every test (slow, root, strace, promtool, browser)"
	@echo "make lint      ruff, mypy, import contracts; format, rules and types of the dashboard"
	@echo "make docs      the generated parts of docs/: commands, settings, options, properties, metrics"
	@echo "make screenshots the pictures of docs/dashboard.md; needs chromium; ARGS=overview makes one"
	@echo "make docs-site the documentation as a site, in site/"
	@echo "make release-check wheel and source archive, each extra in a fresh environment, the demo from the wheel; sizes"
	@echo "make sim       seeded simulations of the protocol; SEEDS=0:1000"
	@echo "make mesh      clusters that replicate to each other in virtual time, whatever operators do; SEEDS=0:4000 is a night's run"
	@echo "make world     whole clusters of shipped nodes in virtual time, with clients, operators and faults; SEEDS=0:100000"
	@echo "make faults    a cluster of real processes that are killed, paused and cut off; histories are checked; KILLS=200 faults"
	@echo "make endurance two clusters of three nodes under load and faults, then every proof of equality; MINUTES=60 of it"
	@echo "make bench     the benchmarks; ARGS=\"--json\" for one JSON object each"
	@echo "make bench-peers our clusters beside etcd and NATS, which must be installed; ARGS=\"--rounds 1 --only etcd\" and others"
	@echo "make wheel     dist/isthmus-VERSION.whl, the same as dist/isthmus.zip, the ending that Spark's --py-files knows, and"
	@echo "               dist/isthmus_client-VERSION.whl, the Python client alone"
	@echo "make venv      the environment alone, .venv from a Python 3.11, 3.12 or 3.13 (PYTHON=/path/to/python names one)"
	@echo "make clean     removes the environment and all caches"

venv:
	@./.ci/venv

demo: venv
	@$(BIN)/isthmus demo $(ARGS)

lint: venv
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@said=$$($(BIN)/mypy) || { echo "$$said" | sed 's,^isthmus/\([a-z]*/\),\1,'; exit 1; } # the paths that git knows
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/deno fmt --quiet --check --config $(PAGES)/deno.json $(PAGES)/static/js $(PAGES)/static/pages
	@$(BIN)/deno lint --quiet --config $(PAGES)/deno.json $(PAGES)/static/js $(PAGES)/static/pages
	@$(BIN)/deno check --quiet --config $(PAGES)/deno.json $(PAGES)/static/js/*.js $(PAGES)/static/pages/*.js

# In a new checkout one process compiles all tests, during lint; without it each worker would compile all of them.
byte-code: venv
	@[ -d tests/__pycache__ ] || $(BIN)/pytest -q -n 0 --collect-only >/dev/null

test: venv
	@$(MAKE) --no-print-directory -j 2 lint byte-code
	@$(BIN)/pytest -q -n $(WORKERS) $(SPREAD) -m "$(ISTHMUS_TEST_MARKS)" $(ARGS)

test-fast: venv
	@$(BIN)/pytest -q -n 4 $(SPREAD) -m "not slow" -k "not zookeeper" $(FAST_TESTS) $(ARGS)

# The quick tests as `make test` spreads them; then the slow ones, each core its own, since they keep deadlines of real
# processes. Both run, whatever fails; 5: a part has no such test.
test-all: venv
	@$(MAKE) --no-print-directory -j 2 lint byte-code
	@status=0; \
	part() { ISTHMUS_TEST_SAMPLES=whole $(BIN)/pytest -q $(SPREAD) "$$@" $(ARGS) || [ $$? -eq 5 ] || status=1; }; \
	part -n $(WORKERS) -m "not slow"; \
	part -n 2 -m slow; \
	exit $$status

docs: venv
	@$(BIN)/python -m docs.generate

screenshots: venv
	@$(BIN)/python -m docs.screenshots $(ARGS)

docs-site: venv
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "site/index.html"

release-check: venv
	@$(BIN)/python .ci/release_check.py $(ARGS)

sim: venv
	@$(BIN)/python -m tests.simulation.cluster $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

world: venv
	@$(BIN)/python -m tests.simulation.world $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

mesh: venv
	@$(BIN)/python -m tests.simulation.mesh $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

faults: venv
	@$(BIN)/python -m tests.system.faults $(if $(KILLS),--kills $(KILLS)) $(ARGS)

endurance: venv
	@$(BIN)/python -m tests.system.replication $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

bench: venv
	@$(BIN)/python -m bench.yardstick $(filter-out --profile,$(ARGS))
	@$(BIN)/python bench/put.py $(ARGS)
	@$(BIN)/python bench/replicate.py $(ARGS)
	@$(BIN)/python -m bench.firing $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.isr $(ARGS)
	@$(BIN)/python -m bench.far $(ARGS)
	@$(BIN)/python -m bench.fullsync $(ARGS)
	@$(BIN)/python -m bench.priorities $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.viewers $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.spark $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.handover $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.failover $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.growth $(filter-out --profile,$(ARGS))
	@$(BIN)/python -m bench.balance $(if $(findstring --json,$(ARGS)),--json)

bench-peers: venv
	@$(BIN)/python -m bench.peers $(ARGS)

wheel: venv
	@$(BIN)/python -m hatchling build -t wheel -d dist
	@cd client && ../$(BIN)/python -m hatchling build -t wheel -d ../dist
	@cp dist/isthmus-*.whl dist/isthmus.zip

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
