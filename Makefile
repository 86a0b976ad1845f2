# `make run` serves the bundled model, `make test` runs all tests; `make help` tells the rest.
#
#   PORT=9000      another port for `make run`
#   ARGS="…"       further arguments for roundhouse or pytest
#   BUILD=1        compile llama.cpp for the tests; else they use the prebuilt one that `make run` uses
#   CMAKE_ARGS=…   compile llama.cpp, with these arguments of CMake (scripts/install)
#   LLAMA_INDEX=…  where compiled wheels of llama.cpp come from
#   TORCH_INDEX=…  where torch comes from

VENV ?= .venv
VULKAN_VENV ?= .venv-vulkan
BIN := $(VENV)/bin
CHECKED := gateway backends config bundled training benchmarks tests
SOURCES := $(wildcard $(CHECKED))

# A stamp says which extras are installed; its name holds a digest of what asks for them.
export CMAKE_ARGS LLAMA_INDEX TORCH_INDEX
ASKED := $(BUILD)|$(shell scripts/install --build)|$(LLAMA_INDEX)|$(TORCH_INDEX)
DIGEST := $(shell { cat pyproject.toml constraints.txt; echo '$(ASKED)'; } | cksum | cut -d' ' -f1)
RUN := $(VENV)/.run-$(DIGEST)
TEST := $(VENV)/.test-$(DIGEST)
DEV := $(VENV)/.dev-$(DIGEST)
GPU := $(VENV)/.gpu-$(DIGEST)
GATEWAY := $(VENV)/.gateway-$(DIGEST)
IK := $(VENV)/ik

# Each worker and each server that a test starts would compile all modules again. A server takes a
# fifth of a second to stop, so there is a worker more than cores, up to four.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 4 --dist loadfile
# Left out of `make test-gateway`: what needs large libraries. Tests of encoders skip themselves without the model's
# weights.
HEAVY := --ignore tests/gateway/http/test_openapi_fuzz.py --ignore tests/promises/clients/test_structured.py

export VENV
.NOTPARALLEL:
.PHONY: help run test test-gateway check format lint types floors test-slow test-long test-browser test-gpu test-vulkan test-ik bench schema clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

run: $(RUN) ## serve the bundled model on 127.0.0.1:8000
	@$(if $(PORT),ROUNDHOUSE_SERVER_PORT=$(PORT)) exec $(BIN)/roundhouse serve $(ARGS)

test: $(TEST) ## the suite, but for what is slow or needs a GPU; no compiler is needed
	@$(PYTEST) $(PARALLEL) $(ARGS)

test-gateway: $(GATEWAY) ## the gateway's and the configuration's tests: no compiler, no torch
	@$(PYTEST) $(PARALLEL) $(HEAVY) tests/config tests/gateway tests/promises/clients $(ARGS)

test-slow: $(TEST) ## what takes more than a few seconds a test
	@$(PYTEST) -m "slow and not long and not gpu and not vulkan" $(PARALLEL) $(ARGS)

test-long: $(TEST) ## what takes minutes a test: fuzzing at length
	@$(PYTEST) -m "long and not gpu and not vulkan" --hypothesis-profile=search $(ARGS)

test-browser: $(TEST) ## the console in Chromium, which is installed if apt-get can
	@scripts/chromium && $(PYTEST) -m browser -rs $(PARALLEL) tests/browser $(ARGS)

check: format lint types floors test-slow test-ik test-browser test ## all that CI checks

format: $(DEV)
	@$(BIN)/ruff format --check $(SOURCES)

lint: $(DEV)
	@$(BIN)/ruff check $(SOURCES)

types: $(DEV) $(TEST)
	@$(BIN)/mypy $(SOURCES)

floors: $(DEV)
	@$(BIN)/lint-imports --no-logo

test-gpu: $(GPU) ## the tests that need a CUDA card
	@$(PYTEST) -m gpu -rA $(ARGS)

# The first device there is, twice. Of llama.cpp's fused operations one ends the process in Mesa 22.3's software, which
# compiles each kernel in up to half a minute: what it compiled is kept for all processes of the tests.
test-vulkan: ## llama.cpp on Vulkan's first device, which may be Mesa's in software
	@scripts/vulkan && VENV=$(VULKAN_VENV) CMAKE_ARGS=-DGGML_VULKAN=on scripts/install llamacpp,test-device
	@GGML_VK_VISIBLE_DEVICES=$${GGML_VK_VISIBLE_DEVICES:-0,0} GGML_VK_DISABLE_FUSION=1 \
		MESA_SHADER_CACHE_DIR=$${MESA_SHADER_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}/roundhouse/mesa} \
		$(VULKAN_VENV)/bin/python -m pytest -m "vulkan and not slow" -rs tests/device $(ARGS)

# In an environment of its own over the other: where it is installed, `auto` takes it in other tests, too.
test-ik: $(IK).ready ## ik_llama.cpp as a second library of the llama.cpp engine
	@$(subst $(BIN),$(IK)/bin,$(PYTEST)) -rs -m "not long" $(PARALLEL) tests/backends/engines/llamacpp/test_ik.py \
		tests/backends/engines/llamacpp/test_libraries.py tests/promises/test_libraries.py \
		tests/promises/test_kept.py::test_a_conversation_goes_on_after_its_worker_was_killed_and_after_a_restart $(ARGS)

bench: $(TEST) ## Roundhouse beside other servers on the bundled model
	@$(BIN)/python -m benchmarks $(ARGS)

schema: $(RUN) ## config/schema.json from the structs
	@$(BIN)/python -m config.schema > $(VENV)/schema.json && mv $(VENV)/schema.json config/schema.json

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage

$(RUN):
	@scripts/install llamacpp && touch $@

$(TEST):
	@scripts/install $(if $(BUILD),--build) llamacpp,transformers,adapters,test
	@$(BIN)/python -m pip install -q --no-deps -c constraints.txt exllamav2 exllamav3 # their source, for tests; not CUDA
	@touch $@ $(RUN) $(GATEWAY)

$(IK).ready: $(TEST)
	@test -d $(IK) || $(BIN)/python -m venv --without-pip $(IK)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>"$$($(IK)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/roundhouse.pth"
	@$(BIN)/python -m pip --python $(IK)/bin/python install -q --only-binary :all: --no-deps -c constraints.txt ik-llama-cpp-python \
		&& touch $(IK).ready || echo "No wheel of ik_llama.cpp: its tests are skipped."

$(GATEWAY):
	@scripts/install llamacpp,test-gateway && touch $@ $(RUN)

$(DEV):
	@scripts/install dev && touch $@

$(GPU): $(TEST)
	@scripts/install exllamav2,exllamav3 && touch $@
