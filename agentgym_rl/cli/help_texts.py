"""The descriptions that `arl COMMAND --help` prints, beside the flags themselves."""

DESCRIPTION = """\
Train any agent that speaks the OpenAI API, by asynchronous reinforcement
learning.

  arl train --env math --agent react         the main job: a minute or two
  arl serve --model FOLDER                   of episodes that your programs play
  arl eval  --run runs/NAME                  held-out reward of a finished run
  arl eval  --engine openai --model NAME     the same of any model behind a URL
  arl export --sft runs/NAME --out FILE      its episodes as supervised data
  arl export --model runs/NAME --out FOLDER  its best checkpoint as a model
  arl list                                   environments, agents, sandboxes
"""
AUDIT = """\
Was every trained token sampled by the very policy version recorded with it?

Recomputes the log-prob of every trained token of a run, by the trainer's
forward of its version at its recorded temperature, and compares it with what
the engine reported while sampling. Needs a run made with
--weights.keep_versions=all; a run that has not finished is audited as far as
it got, undisturbed.

float32: every token must agree within the limit (1e-3; engines agree to about
1e-5). bfloat16: the mean of every version must (1e-2); single tokens differ
by more between correct kernels, so one wrong segment can go unnoticed there.

If rollout.interrupt is keep, tokens sampled after an update of their own
request stand on KV of older weights: counted and reported apart, not judged.
A control recomputes some tokens under the version before theirs: if that is
within the limit too, versions hardly differ and the audit proves little.

Tokens that fail are recomputed under neighbouring versions and at temperature
1, to say what is wrong. Exit code: 0 passed, 1 failed, 2 nothing to audit.
"""
EVAL = """\
Held-out reward of a model or a finished run, with the code that training runs.

  arl eval --run runs/NAME                   what a run came to
  arl eval --env math --model FOLDER_OR_ID   a model, on an engine started here
  arl eval --env math --model gpt-4o-mini --engine openai
                                             a model that somebody else serves
  arl eval --env math --model anthropic/NAME --engine litellm
                                             any model that LiteLLM reaches

--engine openai asks any OpenAI-compatible URL: --engine.base_url, with the /v1
it has. The key comes from the environment: from OPENAI_API_KEY, or the variable
that --engine.api_key_env names (empty: none is wanted). Agents never see it.
--engine litellm wants `pip install 'agentgym-rl[litellm]'`, the model's name as
PROVIDER/NAME, and keys where LiteLLM looks for them (ANTHROPIC_API_KEY, ...).
eval.temperature and rollout.max_tokens are set on every request; a model that
refuses one is sent others, --engine.send=temperature,max_completion_tokens say.
The defaults are made for the tiny model: for another raise rollout.max_tokens,
rollout.turn_timeout_s and rollout.episode_timeout_s.

A failing endpoint is never a reward of 0: requests are sent again, episodes are
played again, then the evaluation ends with an error. A wrong key, model or
parameter ends it at once.

--eval.samples_per_task=8 plays each task 8 times and shows pass@1, 2, 4 and 8;
a success has eval.success_reward. Intervals are 95 %, errors clustered by task.
Cost: by --eval.price_prompt and --eval.price_completion (USD per million
tokens), or by the price LiteLLM knows; an unknown cost is not shown.

--out DIR keeps finished episodes in DIR/episodes.db: the same command again
plays what is missing, another configuration is refused. Several --model are
played one after the other on the same tasks, and compared. Each is as above, a
run's folder or RUN/checkpoints/step-N, or ENGINE:NAME on an engine of its own:

  arl eval --env math --model runs/NAME --model litellm:gemini/NAME --out cmp
  arl eval --compare cmp/*                   the table again, of folders
"""
SERVE = """\
Trains a model on episodes that other programs play, in any language: they open
a session with the admin key, ask the OpenAI endpoint with the session's own
key, post a reward, and close. docs/serve.md has it with curl.

  arl serve --steps 40 --gateway.port=8000 --run runs/mine
  cat runs/mine/serve.json                    the endpoint, and the admin key

Sessions that name the same task are one group, rollout.group_size of them, and
are compared with each other. When no more are admitted under the staleness
bound, opening one answers 429: ask again. The admin key comes from
ARL_ADMIN_KEY (serve.admin_key_env); on 127.0.0.1 one is made up where it is not
set.
"""
NEW = """\
Write a small package with an environment of your own; docs/environments.md
explains what is in it.

  arl new env shop            writes the folder shop/: shop.py, a test, ...
  pip install -e shop         from now on `arl list` shows shop-v0
  arl check shop              does it keep what an environment promises?
  arl train --env shop        trains the bundled tiny model, on the CPU
"""
LEDGER = """\
Was every group of episodes trained exactly once, and none skipped?

Reads what a run has left on disk, undisturbed: its log, its metrics, and the
manifests of its checkpoints, in which the trainer says for itself what its
weights have seen. However often the run was killed and resumed, of the weights
that survive each batch must have been trained once, of whole groups, no group
twice; what was given to a batch must be in it; and of a finished run nothing
may be left over.

  arl ledger runs/NAME

Exit code: 0 if so, 1 if not; each fault is named.
"""

RUNS = """\
The runs that are here, the newest first: what state they are in, how far they
came, and how much room they take.

  arl runs                                  those in the folder `runs`
  arl runs elsewhere runs/NAME              those in other folders, or single
  arl runs --compare runs/NAME runs/OTHER   numbers, and keys that differ
  arl runs --delete runs/NAME               asks first; --yes does not

STATE: running; finished, with all its batches; or stopped, which `arl train
--resume RUN` goes on with. REWARD is that of training episodes in the last 5
batches, HELD-OUT that of evaluations before and after. Runs are compared in the
order in which they are named. Runs that live are not deleted. With --json one
object, with the whole configuration of each.
"""

INSPECT = """\
Look at runs in a browser, while they train and afterwards: curves, who waits
for whom, episodes to filter and sort, and each token with its policy version,
log-probs and advantage (docs/inspect.md).

  arl inspect                            all runs in the folder `runs`
  arl inspect runs/NAME runs/OTHER       these
  arl inspect runs/NAME --html run.html  one file, which works without a server

Runs are only read. The page asks nobody but this machine for anything, and this
machine alone can open it; with another --host it takes the token that is part
of the printed URL. The newest of 100,000 episodes are there at once, the others
a few seconds later. Ctrl-C ends it.
"""

ENGINES = """\
The engines of a run that lives; they may come and go while it trains.

  arl engines runs/NAME                     who serves, at which version
  arl engines runs/NAME --add               one more; --add 2: two
  arl engines runs/NAME --add http://HOST:8000
                                            a server that runs, where
                                            engine.urls has others
  arl engines runs/NAME --remove engine-0   its requests go on elsewhere, then
                                            it is ended

One that joins gets the current version before it serves, and passes the checks
of the start. The last one that serves cannot leave. `arl train --resume` starts
with the configured number again. Asks the run itself, which tells its address
to its owner alone (control.json in its folder).

Exit code: 0 done, 1 not possible now or one did not join, 2 wrong use.
"""

WORKERS = """\
The rollout workers of a run that lives; they may come and go while it trains.

  arl workers runs/NAME                     who plays, and how many groups
  arl workers runs/NAME --add               one more; --add 2: two
  arl workers runs/NAME --remove rollout-0  it plays what it has, and then ends

For runs that began with workers (`rollout.workers`). Each plays an equal share
of the groups. One that leaves has rollout.episode_timeout_s to play what it has
to the end; others play the rest. The last one that plays cannot leave.
`arl train --resume` starts with the configured number again. Asks the run
itself, which tells its address to its owner alone (control.json in its folder).

Exit code: 0 done, 1 not possible now or one did not join, 2 wrong use.
"""

REPLAY = """\
Train a batch of a run once more, and compare it with what the run recorded.

Takes the newest checkpoint from before that batch (or the model that the run
began with), trains the batches from there to STEP again from the log, and
compares loss and weights of each with those of the run. A run trained by one
rank must agree bit for bit, on the machine it was made on; one of several ranks
agrees up to rounding, and only its loss is judged. The run is only read.

  arl replay runs/NAME --step 12

Exit code: 0 if they agree, 1 if not.
"""

REVERIFY = """\
Would the environment, as it is today, pay what the recorded episodes were paid?

Plays every episode that a run has recorded again: the same task, the same
actions, in a new environment made from the run's configuration. No model is
asked, and the run itself is only read. Rewards that differ are listed, with
what the verifier says of them today; so are tool outputs that differ, and
episodes that end elsewhere. An episode that cannot be played again, because a
sandbox fails, say, counts neither as changed nor as unchanged.

  arl reverify runs/NAME --write new.jsonl  the old and the new rewards, a line
                                            each
  arl reverify runs/NAME --env.options.max_turns=2
                                            in another environment

Exit code: 0 nothing changed, 1 some rewards did, 2 nothing to verify.
"""
EXPORT = """\
Recorded episodes as supervised data, one JSON object a line; or, with --model,
a checkpoint as a folder that from_pretrained loads.

  arl export --sft runs/NAME --out good.jsonl --min-reward 1
  arl export --sft kept --out data.jsonl    of `arl eval --out kept`
  arl export --model runs/NAME --out best   its best checkpoint, by
                                            trainer.best_metric
  arl export --model runs/NAME/checkpoints/step-20 --out model

Each line has messages and tools, as `messages` datasets of TRL and Hugging Face
have them, and reward, task_id, env, split, episode_id and policy_versions.
Episodes that failed are left out. An episode that forked (its agent rewrote
history, or held several conversations) has its last conversation alone.

--format tokens has input_ids and labels instead: exactly what the engine was
fed and sampled (labels are -100 elsewhere), every conversation a line. Models
that somebody else serves leave no tokens.
"""
TIMELINE = """\
A trace of the events of a run, living or not, that https://ui.perfetto.dev and
chrome://tracing show.

  arl timeline runs/NAME

The trace has the phases of the trainer, and every training episode with its
turns (first to last token, policy versions): what waits for what, and which
turns an update met. Times are the machine's monotonic clock, so all processes
agree.
"""
PLAN = """\
What a run would do, before it is paid for: throughput, staleness, idle time;
and what else to configure. The rollout, buffer and controller of `arl train`
run in virtual time, around simulated engines, a trainer and episodes
(docs/plan.md).

  arl plan --run runs/NAME --cores 2 --rollout.max_staleness=4
                 a run like that one, with another bound; it is measured first
  arl plan --config my.toml --gpu H100 --parameters 7.6e9 --gpus 64 --plot p.png
                 a model on 64 GPUs that nobody has measured, by data sheets

Engines, slots, ranks, batches and bounds are those of the configuration
(without --config that of --run), and its keys may follow. All else, how fast
parts are and how long episodes, are rates: measured by --run, estimated by
--gpu, or in a file, --rates, as --write-rates writes it. The file overrides
--gpu.

--cores N: engines, trainer and rollout share N processors, as they do on one
machine without GPUs. Left out, none is ever short of one.
--gpus N: N GPUs in all, and the search may split them otherwise between engines
and trainer. The search changes one thing at a time, and keeps what is 3 %
faster. Effects of staleness or a batch's size on learning are not modelled.
"""
DOCTOR = """\
The parts of this machine that work, and what to do about those that do not.

`arl doctor` looks at Python, torch, models, shared memory, disk, open files,
GPUs, vLLM, Ray, Slurm and every sandbox backend; only what `arl train --env
math` needs counts for the exit code. `--engine.type=vllm --engine.python=FILE`
asks another interpreter for vLLM.

`arl doctor sandbox` tries each thing that the chosen sandbox backend needs of
kernel, daemon or account, one by one, and says what programs get there. The
local backend never runs a program with less isolation than it promises: where
a required probe fails it refuses to start, with the same lines. If namespaces
are missing, --sandbox.options.isolation=landlock tries what it can do instead.

Exit code: 0 it works, 1 it does not.
"""
CHECK = """\
Does an environment keep the contract? Criterion by criterion, with what to do.

  arl check math                       a registered id, or name:value
  arl check mine:MyEnv                 a class of the current folder
  arl check math --env.options.level=3 --tasks=10000
  arl check --list                     the criteria, a line each

Scripted agents play a few tasks: one says what solve() gives, one nothing, one
repeats the question, one calls every tool with junk, others give bad answers
and broken messages. Each criterion that fails says what was found and what to
do; one that only follows from another waits for it. With --tasks=N they play N
tasks each: the oracle must be paid in full, the others nothing.

A sandbox is started where the environment needs one. Exit code: 0 it passes,
1 it does not, 2 there is no such environment or criterion.
"""
KEYS = """\
any key of the configuration can be set as --section.key=value, for example
--rollout.max_staleness=1 --trainer.learning_rate=1e-4; examples/math.toml
explains them all:
"""
