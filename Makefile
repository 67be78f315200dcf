# Everything a person runs. It needs Python 3.11+ and the package registries; the rest it installs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e trainer_client -e rubric_store -e "judge_server[llamacpp]" -e services
STAMP := $(VENV)/.installed
MODEL ?= qwen2.5-coder-1.5b

.DEFAULT_GOAL := help
.PHONY: help install demo demo-all test check format serve bench bench-http bench-engine agreement clean

help: ## show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP) ## make .venv with the four packages and the developers' tools

$(STAMP): pyproject.toml constraints.txt $(wildcard */pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Adjudge needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV) (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(PACKAGES) --group dev
	@touch $@

demo: $(STAMP) ## fetch the judge model and score the first example
	@$(BIN)/adjudge models pull $(MODEL)
	@$(BIN)/adjudge score examples/srar.jsonl --mode stepwise --limit 1 --table --engine llamacpp://$(MODEL)

demo-all: $(STAMP) ## score all examples; some minutes on two cores
	@$(BIN)/adjudge models pull $(MODEL)
	@$(BIN)/adjudge score examples/srar.jsonl --mode stepwise --table --engine llamacpp://$(MODEL)
	@$(BIN)/adjudge score examples/gsm8k.jsonl --rubric examples/gsm8k.rubric.json --mode factual_override \
		--table --engine llamacpp://$(MODEL)

test: $(STAMP) ## run every test, with a PostgreSQL, a Redis and a judge model of its own
	@$(BIN)/pytest

check: $(STAMP) ## format, lint, types, import floors and the quick tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest -m "not model and not install"

format: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

serve: $(STAMP) ## serve the API on http://127.0.0.1:8000
	@$(BIN)/adjudge models pull $(MODEL)
	@$(BIN)/adjudge serve --engine llamacpp://$(MODEL)

bench: bench-http bench-engine ## every benchmark; tables on the terminal, JSON in .cache/bench

bench-http: $(STAMP) ## what everything around the model costs
	@$(BIN)/python -m benchmarks.http_overhead

bench-engine: $(STAMP) ## Adjudge against the bare engine, with both models
	@$(BIN)/adjudge models pull qwen2.5-coder-0.5b
	@$(BIN)/adjudge models pull qwen2.5-coder-1.5b
	@$(BIN)/python -m benchmarks.bare_engine

agreement: $(STAMP) ## verdicts against labels; DATA is a folder with the public data sets
	@$(BIN)/python -m benchmarks.agreement $(DATA)

clean: ## remove the environment and what was built
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
