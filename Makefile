# Every target first makes .venv (tools/setup.sh: uv when it is on PATH, else venv and pip; pinned by constraints.txt).
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
STAMP := .venv/.installed
export OMP_NUM_THREADS := 1
export PYTHONUNBUFFERED := 1

.PHONY: help demo test test-quick test-long test-all env-vllm test-vllm env-lerobot test-lerobot env-warp test-warp bench bench-learn bench-smoke notebooks lint lab doctor clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt environment.yml tools/setup.sh
	@bash tools/setup.sh
	@touch $@

demo: $(STAMP)  ## train a robot arm to press a button, under a plan that it finds by itself, with a live view
	@.venv/bin/rlinf-lab demo $(ARGS)

# What each set is for: docs/design/house.md. An `-m` replaces that of pyproject.toml.
HERE := not gpu and not vllm and not lerobot and not warp
SUITE := $(PY) -m pytest -n 3 --dist loadgroup

test: $(STAMP)  ## the daily tests: about 8 minutes on 2 cores
	@echo "make test takes about 8 minutes on 2 quiet cores (make test-quick: under 3, without Ray, browser and what computes long)."
	@$(SUITE) $(ARGS)

test-quick: $(STAMP)  ## those of them without Ray and browser that compute for less than half a second each: under 3 minutes
	@echo "make test-quick takes under 3 minutes on 2 quiet cores."
	@$(SUITE) -m "not slow and not long and not heavy and not ray and not browser and $(HERE)" $(ARGS)

test-long: $(STAMP)  ## clusters, all notebooks and benchmarks, which CI runs after the daily tests: about 13 minutes
	@echo "make test-long takes about 13 minutes on 2 quiet cores."
	@$(SUITE) -m "long and not slow and $(HERE)" $(ARGS)

test-all: $(STAMP)  ## every test, sweeps and (where there is one) GPU ones too: an hour
	@echo "make test-all takes an hour or more on 2 cores."
	@$(SUITE) -m "not vllm and not lerobot and not warp" $(ARGS)

.venv-vllm/.installed: constraints-vllm.txt tools/setup_vllm.sh
	@bash tools/setup_vllm.sh
	@touch $@

env-vllm: .venv-vllm/.installed  ## vLLM on CPU in an environment of its own (3 GB, 2 to 6 minutes)

test-vllm: .venv-vllm/.installed  ## what needs vLLM, with it
	@RLINF_LAB_REQUIRE_VLLM=1 .venv-vllm/bin/python -m pytest tests/generation tests/benchmarks tests/notebooks -m vllm $(ARGS)

.venv-lerobot/.installed: constraints-lerobot.txt tools/setup_lerobot.sh
	@bash tools/setup_lerobot.sh
	@touch $@

env-lerobot: .venv-lerobot/.installed  ## lerobot in an environment of its own (2 GB, 2 to 6 minutes)

test-lerobot: .venv-lerobot/.installed  ## what lerobot reads of what is written here
	@RLINF_LAB_REQUIRE_LEROBOT=1 .venv-lerobot/bin/python -m pytest tests/datasets tests/policies -m lerobot $(ARGS)

.venv-warp/.installed: constraints-warp.txt tools/setup_warp.sh
	@bash tools/setup_warp.sh
	@touch $@

env-warp: .venv-warp/.installed  ## MuJoCo Warp and mjlab in an environment of their own (2 GB, 2 to 5 minutes)

test-warp: .venv-warp/.installed  ## what needs MuJoCo Warp, with it, on cores
	@RLINF_LAB_REQUIRE_WARP=1 .venv-warp/bin/python -m pytest tests/simulators tests/notebooks tests/benchmarks -m "warp and not gpu" $(ARGS)

bench: $(STAMP)  ## measure, paired with peers, and write benchmarks/results
	@$(PY) benchmarks/harness.py

bench-learn: $(STAMP)  ## SAC on MuJoCo against SB3 over seeds: hours
	@$(PY) benchmarks/harness.py sac_mujoco

notebooks: $(STAMP)  ## execute the notebooks and keep their outputs (ARGS: which)
	@$(PY) tools/execute_notebooks.py $(ARGS)

bench-smoke: $(STAMP)  ## run every benchmark at a tiny size
	@$(PY) benchmarks/harness.py --smoke

lint: $(STAMP)  ## ruff, mypy, import contracts
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache | tail -n 3

lab: $(STAMP)  ## JupyterLab on the first notebook
	@.venv/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_hello.ipynb $(ARGS)

doctor: $(STAMP)  ## what works on this machine, and how to mend the rest
	@.venv/bin/rlinf-lab doctor

clean:  ## remove the environment and everything generated
	rm -rf .venv .venv-vllm .venv-lerobot .venv-warp runs test-artifacts build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
