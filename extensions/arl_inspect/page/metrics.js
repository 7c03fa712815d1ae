// The metrics of runs: what they are called, their groups, and which are shown at first.

// With a title, and shown at first in this order if they are recorded.
const USUAL = [
  ["reward/mean", "Reward of training episodes"],
  ["eval/reward", "Held-out reward"],
  ["loss", "Loss"],
  ["policy/approx_entropy", "Entropy, nats"],
  ["episode/tokens", "Tokens of an episode"],
  ["episode/turns", "Turns of an episode"],
  ["reward/equal_groups", "Groups of equal rewards, share"],
  ["staleness/mean", "Staleness, versions"],
  ["mismatch/max_abs", "Largest |proximal − behavior|"],
  ["policy/clip_fraction", "Clipped tokens, share"],
  ["throughput/trained_tokens_per_s", "Trained tokens a second"],
  ["trainer/idle_share", "Share of the ranks' passes spent waiting"],
  ["overlap", "Sampled while the trainer computed, share"],
  ["time/step", "Seconds of a batch"],
  ["time/rollout_wait", "Trainer waits for a batch, s"],
];
const TITLES = new Map([
  ...USUAL,
  ["grad_norm", "Norm of the gradient"],
  ["lr", "Learning rate"],
  ["reward/std", "Deviation of rewards in the batch"],
  ["engine/reused_tokens", "Prompt tokens reused so far"],
  ["versions_per_episode", "Policy versions of an episode"],
]);
const MOST_OWN = 8; // of those that are shown at first
// What every run counts. The rest of `reward/` and of `episode/` are the parts of the run's own
// reward and the counters of its environment.
const COUNTED = new Set([
  "turns", "tokens", "rows", "truncated", "forks", "ambiguous_echoes", "trusted_edits", "side_turns", "tool_calls", "malformed_calls",
  "length_turns", "greedy_turns", "constrained_turns", "unmatched_turns", "forced_missed", "undelivered_turns", "lost_replies",
  "joined_retries", "overflows", "prompt_tokens", "sampled_tokens", "unknown_version_tokens", "single_choice_tokens", "trained_tokens",
  "omitted_tools", "placeholders", "ignored_sampling", "truncated_turns", "uncounted_turns", "filtered_turns", "empty_turns", "text_calls",
  "attempts", "left_out", "unpaid_turn_rewards",
]);
const FAMILIES = /^(forks|canary|judge)_/;
const OWN = "own"; // no prefix of a metric

function isOwn(name) {
  if (name.startsWith("reward/")) return !["reward/mean", "reward/std", "reward/equal_groups"].includes(name);
  const counter = name.startsWith("episode/") ? name.slice("episode/".length) : "";
  return counter !== "" && !COUNTED.has(counter) && !FAMILIES.test(counter);
}
const GROUPS = {
  eval: "held-out (eval/…)",
  reward: "reward",
  [OWN]: "own reward parts and environment counters",
  episode: "episodes",
  "": "training",
  policy: "policy",
  mismatch: "mismatch of engine and trainer",
  staleness: "staleness",
  rollout: "rollout",
  throughput: "throughput",
  trainer: "trainer ranks",
  time: "time",
  engine: "engine",
  env: "each environment (env/…)",
  layer: "layers",
};

export const titleOf = (name) => TITLES.get(name) ?? name;
export const isHeldOut = (name) => name.startsWith("eval/");

// The names of all recorded numbers, of batches and of evaluations.
export function namesOf(found) {
  const names = new Set();
  for (const { rows, evaluations } of found) {
    for (const row of rows) for (const name in row) if (name !== "step" && typeof row[name] === "number") names.add(name);
    for (const it of evaluations) for (const name in it) if (isHeldOut(name) && typeof it[name] === "number") names.add(name);
  }
  return names;
}

// The usual ones, with the run's own after the rewards.
export function usualOf(names) {
  const own = [...names].filter(isOwn).sort().slice(0, MOST_OWN);
  const usual = USUAL.map(([name]) => name).filter((name) => names.has(name));
  const at = usual.filter((name) => ["reward/mean", "eval/reward"].includes(name)).length;
  return [...usual.slice(0, at), ...own, ...usual.slice(at)];
}

// [[group's title, names]], of the names that have all the words.
export function grouped(names, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (name) => words.every((word) => `${name} ${titleOf(name)}`.toLowerCase().includes(word));
  const groups = new Map();
  for (const name of [...names].filter(has).sort((a, b) => a.localeCompare(b, "en", { numeric: true }))) {
    const prefix = isOwn(name) ? OWN : name.includes("/") ? name.slice(0, name.indexOf("/")) : "";
    groups.set(prefix, [...(groups.get(prefix) ?? []), name]);
  }
  const order = Object.keys(GROUPS);
  const rank = (prefix) => (order.includes(prefix) ? order.indexOf(prefix) : order.length);
  return [...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b)).map(([prefix, of]) => [GROUPS[prefix] ?? prefix, of]);
}

// Names in the address: a name may contain a comma.
export const written = (names) => names.map((name) => name.replace(/[\\,]/g, "\\$&")).join(",");
export const readNames = (text) => (text.match(/(\\.|[^\\,])+/g) ?? []).map((name) => name.replace(/\\(.)/g, "$1"));

// Means of at most `width` values up to each; missing values stay missing.
export function smoothed(values, width) {
  let sum = 0;
  const near = [];
  return values.map((value) => {
    if (value === null) return null;
    near.push(value);
    sum += value;
    if (near.length > width) sum -= near.shift();
    return sum / near.length;
  });
}
