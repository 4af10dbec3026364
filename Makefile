# Two commands do everything from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
OUT    ?= out
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Modules are compiled when they are first imported; to compile all of them here takes as long as the rest.
PIP    := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check

.PHONY: demo dist docs matrix quick test run-tests test-all lint bench clean help

help:
	@echo "make demo      set up, run the main job, say where the result is"
	@echo "make quick     the laws of the core and of every rule (a minute or two)"
	@echo "make test      set up, lint, types, tests (minutes)"
	@echo "make test-all  the same with the slow tests"
	@echo "make bench     benchmarks, as ratios to peers in the same run"
	@echo "make dist      wheels and source archives of both packages, checked"
	@echo "make matrix    the library's tests from its wheel under other versions of Python and torch"
	@echo "make docs      the documentation site; opens from disk"

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "meancap needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "could not create $(VENV); on Debian install python3-venv"; exit 1; }
	@echo "installing into $(VENV) (a few minutes the first time) ..."
	@$(PIP) $$(grep '^torch==' constraints.txt)
	@$(PIP) -c constraints.txt -e . -e 'lab[dev]'
	@# A peer of the tests whose metadata ask for torchvision, which has no CPU build to match torch's.
	@$(PIP) --no-deps $$(grep -i '^torch[-_]fidelity==' constraints.txt)
	@touch $@

demo: $(READY)
	@$(BIN)/python -m meancap demo --out $(OUT)/demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(READY)
	@# Side by side: the types wait for one core, the tests for another.
	@$(MAKE) --no-print-directory -j 2 lint run-tests

run-tests: $(READY)
	$(BIN)/python -m pytest -m "not slow" -n 2

quick: $(READY)
	$(BIN)/ruff check -q .
	$(BIN)/python -m pytest -m "not slow" -k "not compiles" -n 2 -x tests/sampling tests/rules/test_rule.py tests/rules/test_caps.py \
	  tests/rules/test_grammar.py tests/rules/test_methods.py tests/rules/test_rule_contract.py \
	  tests/test_prediction.py tests/test_record.py tests/test_architecture.py

test-all: lint
	$(BIN)/python -m pytest -n 2

docs: $(READY)
	@$(BIN)/python docs/prose.py
	@$(BIN)/python -m sphinx -E -q -W --keep-going -b html -d $(OUT)/doctrees docs $(OUT)/site
	@echo "open $(OUT)/site/index.html"

bench: $(READY)
	$(BIN)/python -m benchmarks

dist: $(READY)
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@$(BIN)/python -m build --no-isolation lab --outdir dist
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl

matrix: $(READY)
	@$(BIN)/python tools/matrix.py

clean:
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache
