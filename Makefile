# `make` explains the targets. Each makes the .venv it needs; PYTHON=python3.12 chooses the interpreter.
BIN := .venv/bin
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1
export PYTHONDONTWRITEBYTECODE := # compiling the tests takes longer than importing them

MODELS := $(wildcard tests/lab/test_recipe_*_model.py)
WITH_TORCH := $(addprefix tests/unit/test_,bad_arguments.py drain_watch.py training_batches.py)
LAB := tests/lab $(addprefix --ignore ,$(MODELS))
# Where unit tests write, if programs can run there: on ext4, allocating inodes takes a sixth of their CPU time.
MEMORY := $(or $(TMPDIR),$(shell findmnt -no OPTIONS /dev/shm 2>/dev/null | grep -v noexec >/dev/null && echo /dev/shm))
UNIT := $(foreach part,1 2 3 4 5 6 7 8,unit-$(part))

.PHONY: help demo test lab models unit check docs bench setup clean

help: ## Print this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-6s  %s\n' "$$name" "$$text"; done

demo: setup ## Run two ranks on each of two virtual hosts and let them send messages
	$(BIN)/muster run --lab 2 --nproc 2 -m muster.recipes.message_passing

test: setup ## The static checks and every test, side by side; one test builds the documentation
	@$(MAKE) --no-print-directory --keep-going -j4 lab check models $(UNIT)

lab: setup ## Only the tests with real processes
	@$(BIN)/python -m pytest --collect-only -q $(LAB) >/dev/null || true # compiles once what six workers import
	$(BIN)/python -m pytest -n 6 $(LAB) # many tests wait, so six share two cores; tests/conftest.py distributes them

models: setup ## Only the tests that import torch into pytest, most of them of the networks of recipes
	$(BIN)/python -m pytest -q -p no:cacheprovider $(MODELS) $(WITH_TORCH)

unit: setup ## Only the tests of pure functions, in seconds
	@$(MAKE) --no-print-directory --keep-going --output-sync -j8 $(UNIT)

unit-%: setup
	$(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest -q -p no:cacheprovider -o tmp_path_retention_policy=failed \
		--part $*/8 tests/unit $(addprefix --ignore ,$(WITH_TORCH)) # see tests/conftest.py

check: setup ## Style, types and who imports whom: ruff, pyright, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: setup ## Build the documentation into build/site; a broken link or a stale name is an error
	@$(BIN)/python -m mkdocs --quiet build

bench: setup ## Measure Muster beside torchrun and mpirun, and write the table of docs/measurements/speed.md
	$(BIN)/python -m benchmarks
	$(BIN)/python -m tools.reference

setup: ## Make .venv with pinned versions and, as root, install the Debian packages of the lab
	@tools/setup.sh

clean: ## Remove .venv, builds and caches
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
