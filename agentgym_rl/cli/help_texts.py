"""The descriptions that `arl COMMAND --help` prints, beside the flags themselves."""

DESCRIPTION = """\
Train any agent that speaks the OpenAI API, by asynchronous reinforcement
learning.

  arl train --env math --agent react         train on the CPU, in minutes
  arl serve --model FOLDER                   train on episodes of your programs
  arl eval  --run runs/NAME                  held-out reward of a finished run
  arl eval  --engine openai --model NAME     the same for a model behind a URL
  arl export --sft runs/NAME --out FILE      its episodes as supervised data
  arl export --model runs/NAME --out FOLDER  its best checkpoint as a model
  arl list                                   environments, agents, sandboxes
"""
TRAIN = """\
Train an agent on an environment, on this machine or on a cluster. Engines
sample, the trainer trains, and the controller plays the episodes, all at the
same time.

  arl train --env math --agent react          the bundled model, in a minute
  arl train --config FILE --model FOLDER      keys from a file, another model
  arl train --preset dapo --steps 20 --run runs/dapo
                                              a published recipe
  arl train --resume runs/NAME                continue a run that has ended

The run folder gets metrics.jsonl, reward.png, the log of episodes
(episodes.db), checkpoints/ and export/, the trained model in Hugging Face's
format. Exit code: 0 done, 1 failed, 2 a wrong configuration, 130 Ctrl-C.
"""
AUDIT = """\
Verify that every trained token was sampled by its recorded policy version.

The command recomputes the log-prob of every trained token of a run, by the
trainer's forward of the token's version at its recorded temperature, and
compares it with the log-prob that the engine reported. The run must have been
made with --weights.keep_versions=all. The command does not disturb a running
run, and audits its batches so far.

float32: every token must agree within the limit (1e-4; engines agree to about
1e-5). bfloat16: the mean of every version must be within 1e-2, or within four
times what rounding does to the run's own tokens (measured: `rounding` in
--json); single tokens differ by more between correct kernels, so one wrong
segment can be missed.

If rollout.interrupt is keep, tokens sampled after an update of their own
request depend on the KV cache of older weights. The command counts and reports
them separately, without a verdict. A control recomputes some tokens under the
previous version: if that is within the limit too, the versions hardly differ,
and the audit proves little.

Tokens that fail are recomputed under neighbouring versions and at temperature
1, to find the cause. Exit code: 0 passed, 1 failed, 2 nothing to audit.
"""
EVAL = """\
Evaluate a model or a finished run on held-out tasks, as training does.

  arl eval --run runs/NAME                   the result of a run
  arl eval --env math --model FOLDER_OR_ID   a model, on an engine started here
  arl eval --env math --model gpt-4o-mini --engine openai
                                             a model behind an API
  arl eval --env math --model anthropic/NAME --engine litellm
                                             a model that LiteLLM supports

--engine openai uses an OpenAI-compatible URL, --engine.base_url, including its
/v1. The key comes from the environment variable OPENAI_API_KEY, or from the one
that --engine.api_key_env names (empty: no key). Agents never see the key.
--engine litellm needs `pip install 'agentgym-rl[litellm]'`, a model name like
PROVIDER/NAME, and keys in LiteLLM's variables (ANTHROPIC_API_KEY, ...).
Every request has the parameters of --engine.send, by default temperature
(eval.temperature) and max_tokens (rollout.max_tokens). If a model
refuses one, choose others: --engine.send=temperature,max_completion_tokens. For
these engines rollout.max_tokens is 1024 unless it is set, and a reply may be
silent for 120 s (rollout.turn_timeout_s).

A failing endpoint never gives a reward of 0: requests are sent again, then
episodes are played again, then the evaluation ends with an error. A wrong key,
model or parameter ends it at once.

--eval.samples_per_task=8 plays each task 8 times and shows pass@1, 2, 4 and 8;
eval.success_reward is the least reward of a success. Intervals are 95 %, with
errors clustered by task. The cost is computed from --eval.price_prompt and
--eval.price_completion (USD per million tokens), or from LiteLLM's prices; an
unknown cost is not shown.

--out DIR keeps finished episodes in DIR/episodes.db. The same command again
plays the missing episodes; another configuration is refused. Several --model
are evaluated one after the other on the same tasks, and compared. Each is a
model as above, a run's folder or RUN/checkpoints/step-N with the engine of that
run, or ENGINE:NAME with an engine of its own:

  arl eval --env math --model runs/NAME --model litellm:gemini/NAME --out cmp
  arl eval --compare cmp/*                   the table again, from folders

--round-robin lets them play each other at a game of two seats, each pair every
held-out task at both seats, and rates them (docs/self-play.md):

  arl eval --env tictactoe --round-robin --model runs/NAME --model bundled
"""
SERVE = """\
Train a model on episodes that other programs play, in any language. A program
opens a session with the admin key, uses the OpenAI endpoint with the session's
key, posts a reward, and closes the session. docs/serve.md has an example.

  arl serve --steps 40 --gateway.port=8000 --run runs/mine
  cat runs/mine/serve.json                    the endpoint, and the admin key

rollout.group_size sessions with the same task are a group, and are compared
with each other. If the staleness bound admits no session, the answer is 429:
retry later. The admin key comes from ARL_ADMIN_KEY (serve.admin_key_env); on
127.0.0.1 a key is generated if this variable is not set.
"""
NEW = """\
Write a small package with an environment of your own (docs/environments.md), or
with --harbor a task in Harbor's format (docs/coding-gym.md).

  arl new env shop            write the folder shop/: shop.py, a test, ...
  pip install -e shop         after this, `arl list` shows shop-v0
  arl check shop              test the promises of an environment
  arl train --env shop --model FOLDER
                              train a model that knows English; the bundled one
                              earns nothing on words that it has never seen
  arl new env --harbor fix    write the task folder fix/
  arl check harbor:fix        play its solution, and agents that deserve nothing
"""
LEDGER = """\
Verify that every group of episodes was trained exactly once, and none skipped.

The command reads the log, the metrics and the checkpoints' manifests of a run
(in the manifests the trainer records the groups that its weights have seen). It
does not disturb the run. However often the run was killed and resumed, the
surviving weights must have been trained once on each batch, on complete groups
and on no group twice; each group of a batch must be trained; and a finished run
must have no group left.

  arl ledger runs/NAME

Exit code: 0 no fault, 1 faults, each of them named.
"""

RUNS = """\
List runs, the newest first, with their state, progress and size on disk.

  arl runs                                  the runs in the folder `runs`
  arl runs elsewhere runs/NAME              in other folders, or single runs
  arl runs --compare runs/NAME runs/OTHER   results, and keys that differ
  arl runs --delete runs/NAME               asks first, unless --yes is given

STATE is running, finished (all batches are trained), or stopped (`arl train
--resume RUN` continues it). REWARD is the mean of training episodes in the last
5 batches, HELD-OUT the rewards of the evaluations before and after. --compare
keeps the given order. Running runs are not deleted. --json prints one object,
with the complete configuration of each run.
"""

INSPECT = """\
Show runs in a browser, during training and afterwards: curves, waits between
processes, episodes to filter and sort, and each token with its policy version,
log-probs and advantage (docs/inspect.md).

  arl inspect                            all runs in the folder `runs`
  arl inspect runs/NAME runs/OTHER       these runs
  arl inspect runs/NAME --html run.html  one file, which works without a server

Runs are only read. The page sends requests only to this machine, and can be
opened only on it. With another --host it can be opened elsewhere, with the
token that is part of the printed URL. The newest of 100,000 episodes are shown
at once, the others some seconds later. Ctrl-C ends the command.
"""

ENGINE = """\
Serve a policy over HTTP until SIGTERM or Ctrl-C.

  arl engine --port 8000                     the bundled model
  arl engine --model.path FOLDER             a model folder of Hugging Face
  arl engine --backend vllm --engine.python=PYTHON_OF_VLLM      sglang likewise
  arl engine --reward-model FOLDER           a sequence classifier, at /classify

The embedded engine serves to OpenAI's SDK (without a key, and without chats: it
knows no template, the gateway of `arl serve` does)
  /v1/completions, /v1/models
and to runs, as vLLM does,
  /inference/v1/generate                     token ids in, sampled ids out
  /inference/v1/abort_requests               end requests
  /pause, /resume, /is_paused                between two decode steps
  /sleep, /wake_up, /is_sleeping             release and restore memory
  /start_weight_update, /update_weights, /finish_weight_update
  /update_weight_version, /weight_info       the label of the served weights
  /health, /metrics, /version
These routes have no password: keep them on 127.0.0.1 or a private network.
Another backend becomes this process, with its own routes (docs/engines.md).
"""
ENGINES = """\
Show the engines of a running run, and add or remove engines while it trains.

  arl engines runs/NAME                     the engines, with their versions
  arl engines runs/NAME --add               add one; --add 2: two
  arl engines runs/NAME --add http://HOST:8000
                                            add a running server, if
                                            engine.urls names the others
  arl engines runs/NAME --remove engine-0   its requests continue on others,
                                            then it ends

A new engine passes the checks of the start and gets the current version before
it serves. The last serving engine cannot be removed. `arl train --resume`
starts the configured number again. The command contacts the run at the address
in control.json in its folder, which only the owner of the run can read.

Exit code: 0 done, 1 impossible now or an engine failed to join, 2 wrong use.
"""

WORKERS = """\
Show the rollout workers of a running run, and add or remove workers.

  arl workers runs/NAME                     the workers, with their groups
  arl workers runs/NAME --add               add one; --add 2: two
  arl workers runs/NAME --remove rollout-0  it finishes its groups, then ends

The command is for runs that began with workers (`rollout.workers`). Each plays
an equal share of the groups. A worker that is removed has
rollout.episode_timeout_s (unset: rollout.idle_timeout_s) to finish its groups;
others play the rest. The last worker cannot be removed. `arl train --resume`
starts the configured number again. The command contacts the run at the address
in control.json in its folder, which only the owner of the run can read.

Exit code: 0 done, 1 impossible now or a worker failed to join, 2 wrong use.
"""

REPLAY = """\
Train a batch of a run again, and compare the result with the recorded one.

The command loads the newest checkpoint before this batch (or the initial model
of the run), trains the batches up to STEP again from the log, and compares loss
and weights of each with the run's records. A run with one rank must agree bit
for bit on the same machine. A run with several ranks agrees up to rounding, and
only its loss is compared, as for a batch that another version of this package
trained, which is then named. The run is only read.

  arl replay runs/NAME --step 12

Exit code: 0 if they agree, 1 if not.
"""

REVERIFY = """\
Verify that the current environment gives the recorded rewards.

The command plays every recorded episode of a run again: the same task and the
same actions, in a new environment made from the run's configuration. It sends
no requests to a model, and only reads the run. It lists rewards that differ,
with the current verdict of the verifier, tool outputs that differ, and episodes
that end at another step. An episode that cannot be played again, for example
because a sandbox fails, counts neither as changed nor as unchanged.

  arl reverify runs/NAME --write new.jsonl  the old and new rewards, a line each
  arl reverify runs/NAME --env.options.max_turns=2
                                            in another environment

Exit code: 0 nothing changed, 1 some rewards changed, 2 nothing to verify.
"""
EXPORT = """\
Write episodes as data to train on, one JSON object per line; or, with --model,
a checkpoint as a folder that from_pretrained loads.

  arl export --sft runs/NAME --out good.jsonl --min-reward 1
  arl export --sft kept --out data.jsonl    episodes of `arl eval --out kept`
  arl export --sft --oracle --env math --num 200 --out demos.jsonl
                                            an environment's own solutions
  arl export --filtered runs/NAME --out best.jsonl --min-reward 1 --most 2
                                            the two best of each group
  arl export --pairs runs/NAME --out pairs.jsonl --margin 0.2
                                            the best and the worst, for DPO
  arl export --kto runs/NAME --out labels.jsonl --min-reward 0.5
                                            all, labelled, for KTO
  arl export --model runs/NAME --out best   its best checkpoint, by
                                            trainer.best_metric
  arl export --model runs/NAME/checkpoints/step-20 --out model

Each line has messages and tools in the format of TRL's and Hugging Face's
`messages` datasets, and reward, task_id, env, split, episode_id and
policy_versions. Failed episodes are left out. For an episode that forked (its
agent rewrote history, or held several conversations) the last conversation is
written.

The columns are those of TRL: `messages`; `prompt`, `chosen` and `rejected`,
from the first reply that differs; or `prompt`, `completion` and `label`. Groups
without a pair (rewards too close, other prompts) are counted.

--format tokens writes input_ids and labels instead: the exact tokens that the
engine got and sampled (the label of other tokens is -100), one line per
conversation. Models behind an API leave no tokens.

--oracle plays the first --num tasks of an environment, of --split (train), with
the messages of its solve(), and writes the episodes with the full reward (or
--min-reward). The agent, the environment and their options come from flags,
keys and --config, as for `arl train`; messages and tools are those of a
rollout. `arl train --init sft --data demos.jsonl` learns them, and refuses
episodes of tasks that the run evaluates: `arl eval --eval.split=train --out
DIR` plays training tasks. With
--slips 0.5, half of the episodes have one wrong digit in a call or an answer,
as a careless teacher's would; all rewards are then written.
"""
TIMELINE = """\
Write a trace of the events of a run, running or ended, for
https://ui.perfetto.dev and chrome://tracing.

  arl timeline runs/NAME

The trace has the phases of the trainer, and every training episode with its
turns (first to last token, policy versions). It shows the waits between
processes, and the turns during which an update happened. Times are the
machine's monotonic clock, the same for all processes.
"""
PLAN = """\
Predict throughput, staleness and idle time of a run, and suggest other
configurations. The rollout, buffer and controller of `arl train` run in virtual
time, around simulated engines, a trainer and episodes (docs/plan.md).

  arl plan --run runs/NAME --cores 2 --rollout.max_staleness=4
                 a run like that one, with another bound; it is measured first
  arl plan --config my.toml --gpu H100 --parameters 7.6e9 --gpus 64 --plot p.png
                 a model on 64 GPUs, estimated from data sheets
  arl plan --model FOLDER
                 a model on this machine's CPU, measured for half a minute

Engines, slots, ranks, batches and bounds come from the configuration (without
--config from that of --run), with further keys on the command line. All other
quantities, such as the speed of the parts and the length of episodes, are
rates. --run measures them, --gpu estimates them, and --rates reads a file like
that of --write-rates. The file overrides --gpu. Without any of them, engine and
trainer are measured here if they use a CPU, once for a model and its settings;
lengths are then guesses from the configuration.

--cores N: engines, trainer and rollout share N processors, as on one machine
without GPUs. Without this flag processors are unlimited.
--gpus N: N GPUs in total, which the search may divide between engines and
trainer. The search changes one thing at a time, and keeps what is 3 % faster.
Effects of staleness and batch size on learning are not modelled.
"""
DOCTOR = """\
Test the parts of this machine, and report a remedy for each that fails.

`arl doctor` looks at Python, torch, models, shared memory, disk, open files,
GPUs, vLLM, Ray, Slurm and every sandbox backend; only the needs of `arl train
--env math` affect the exit code. `--engine.type=vllm --engine.python=FILE`
looks for vLLM and SGLang in another interpreter.

`arl doctor sandbox` tests each feature of kernel, daemon or account that the
chosen sandbox backend needs, and reports the rights of its programs. The local
backend never runs a program with less isolation than it promises: if a required
probe fails, it refuses to start, with the same message. If namespaces are
missing, --sandbox.options.isolation=landlock tests the alternative.

Exit code: 0 it works, 1 it does not.
"""
CHECK = """\
Test whether an environment keeps the contract, criterion by criterion.

  arl check math                       a registered id, or name:value
  arl check mine:MyEnv                 a class of the current folder
  arl check math --env.options.level=3 --tasks=10000
  arl check --list                     the criteria, a line each

Scripted agents play a few tasks: one sends the messages of solve(), one sends
empty messages, one repeats the question, one calls every tool with junk, others
give bad answers and broken messages. Each failed criterion is reported with the
result and the remedy; a criterion that depends on a failed one is not tested.
With --tasks=N they play N tasks each: solve() must get the full reward, the
others no reward.

A sandbox is started if the environment needs one. Exit code: 0 it passes,
1 it does not, 2 there is no such environment or criterion.
"""
LIST = """\
List the environments (for --env), agents (for --agent) and sandboxes (for
--sandbox), those of installed plugins included. The version at the end of an id
can be left out: --env math is math-v0.
"""
BENCH = """\
Run a benchmark. The benchmarks are files of benchmarks/ in the source checkout;
the head of each describes its method, duration and environment variables.

  all          every benchmark, one after the other, and one report; hours
  clients      the training rows that real clients make through the gateway
  code         grading of programs: exploits, speed, the cost of isolation
  coding       the coding gym: exploits, speed, remains after kills
  crash        exactly-once training after kills at random moments
  curriculum   episodes that a curriculum saves
  distill      on-policy distillation beside rewards alone
  engine       the embedded engine beside transformers' generate
  env          the time of an environment step, beside vector environments
  exactness    rows beside the tokens that a real engine got and sampled
  faults       each part of a run broken in each way: detection and cost
  gateway      the gateway beside LiteLLM's proxy
  gpu          a first look at a GPU, eight minutes (--model, --out)
  math         the judgement of math answers beside math-verify's
  real         a real language model: time and memory by part (--model)
  sandbox      sandboxes beside programs without isolation
  selfplay     the results of self-play at tic-tac-toe
  staleness    the effect of old episodes, and of corrections for it
  train        the main job: three seeds and the negative controls
  trainer      packed micro-batches beside padded ones, and TRL
  weights      pauses and cost of weight updates (--model)
"""
KEYS = """\
any key of the configuration can be set as --section.key=value, for example
--rollout.max_staleness=1 --trainer.learning_rate=1e-4. --help SECTION says what
its keys do, as in --help algo.kl; examples/math.toml has them all:
"""
