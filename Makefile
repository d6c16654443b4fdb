# `make demo` shows what it does, `make quick` is for after each change, `make test` shows that all of it works.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One process more than there are cores: many tests wait for processes that they started.
PARALLEL := -n $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 1)") --dist loadscope --no-loadscope-reorder
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo quick test lint types unit docs hooks test-slow test-gpu fuzz bench bench-report clean

demo: $(VENV)/.installed
	@$(BIN)/regatta demo

quick: $(VENV)/.dev
	$(BIN)/pytest --quick $(PARALLEL) -n auto

test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j4 lint types docs unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest $(PARALLEL) --durations=25 -m "not slow and not gpu"

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/site
	@echo "the site is in build/site/index.html"

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m "slow and not gpu"

test-gpu: $(VENV)/.dev
	$(BIN)/pytest -m gpu

fuzz: $(VENV)/.dev
	$(PIP) atheris
	$(BIN)/python tests/store/attacks/fuzz_pack.py -max_total_time=60 -artifact_prefix=/tmp/
	$(BIN)/python tests/store/format/fuzz_encodings.py -max_total_time=60 -artifact_prefix=/tmp/

bench-report: $(VENV)/.dev  # which bars hold, from the recorded results
	$(BIN)/python benchmarks/report.py

bench: $(VENV)/.bench
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing regatta and PyTorch into $(VENV) (the first time takes a minute or two)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing what the tests need: TensorFlow, JAX, Ray and more (several minutes the first time)"
	@$(PIP) -e ".[dev]"
	@# networks that nobody here wrote, for the tests; what would run them is large, and not needed
	@$(PIP) --no-deps "rapidocr-onnxruntime; python_version < '3.13'"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "installing what the benchmarks compare with (the first time takes minutes)"
	@$(PIP) -e ".[bench]"
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
