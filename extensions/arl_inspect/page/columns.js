// The columns of the table of episodes, and what an episode shows in them.

import { count, figure } from "./format.js";
import { link } from "./hash.js";
import { toEpisode } from "./list.js";
import { html } from "./vendor/preact.js";

// By name: its label, width, the order it can have, and its cell. Numbers are aligned to the right.
export const COLUMNS = {
  id: { label: "episode", width: "minmax(5.5rem, .5fr)", cell: (e, { run, list }) => html`<a href=${toEpisode(run, e.id, list)}>${e.id}</a>` },
  no: { label: "no.", width: "4.2rem", sort: "row", number: true, cell: (e) => e.row },
  question: { label: "question", width: "minmax(10rem, 3fr)", cell: (e) => e.question },
  answer: { label: "answer", width: "minmax(9rem, 2fr)", cell: (e) => e.answer },
  expected: { label: "expected", width: "minmax(5rem, 1fr)", cell: (e) => e.expected },
  verdict: { label: "verdict", width: "minmax(6.5rem, 1fr)", cell: (e) => html`<${Verdict} episode=${e} />` },
  reward: { label: "reward", width: "5rem", sort: "reward", number: true, cell: (e) => figure(e.reward) },
  parts: { label: "reward parts", width: "minmax(12.5rem, 1.6fr)", cell: (e) => html`<${Parts} parts=${{ ...e.seats, ...e.parts }} />` },
  turns: { label: "turns", width: "4.4rem", sort: "turns", number: true, cell: (e) => e.turns },
  tokens: { label: "tokens", width: "5.2rem", sort: "tokens", number: true, cell: (e) => count(e.tokens) },
  version: { label: "version", width: "4.2rem", number: true, cell: versions },
  batch: { label: "batch", width: "4.6rem", sort: "step", number: true, cell: (e) => e.step ?? "–" },
  outcome: { label: "outcome", width: "6.5rem", cell: (e) => html`<span class=${`state ${e.outcome}`}>${e.outcome}</span>` },
  group: { label: "group", width: "9rem", cell: (e, { run }) => html`<a href=${link("group", `${run}/${e.group}`)}>${e.group}</a>, ${e.cause || e.status}` },
  env: { label: "environment", width: "7rem", cell: (e) => e.env },
  task: { label: "task", width: "9rem", cell: (e) => e.task },
  forks: { label: "forks", width: "9rem", cell: (e) => Object.entries(e.forks).map(([cause, n]) => `${cause} ${n}`).join(", ") },
};
const USUAL = ["id", "question", "answer", "expected", "verdict", "reward", "parts", "turns", "tokens", "version", "batch"];

// The columns that an address names, or else the usual ones that have something to show.
export function columnsOf(options, episodes, facets) {
  const named = (options.columns ?? "").split(".").filter((name) => name in COLUMNS);
  if (named.length) return named;
  const isUseful = {
    expected: (e) => e.expected !== "",
    verdict: (e) => e.verdict !== "" || e.outcome !== "completed",
    parts: (e) => Object.keys(e.seats).length > 0 || Object.keys(e.parts).length > 1,
  };
  const envs = Object.keys(facets?.envs ?? {}).length > 1 ? ["env"] : [];
  return [...USUAL.filter((name) => !isUseful[name] || !episodes.length || episodes.some(isUseful[name])), ...envs];
}

export const isGood = (episode) => (episode.reward > 0 ? "good" : "poor");

// What the verifier said, and the outcome unless the episode simply came to its end.
export function Verdict({ episode }) {
  const isOver = episode.outcome === "completed";
  return html`${episode.verdict && html`<span class=${`verdict ${isGood(episode)}`}>${episode.verdict}</span>`}
    ${(!isOver || !episode.verdict) && html`<span class=${`state ${episode.outcome}`}> ${episode.outcome}</span>`}`;
}

// The parts of a reward; those that differ from `other` are marked.
export function Parts({ parts, other }) {
  const differs = (name) => other && other[name] !== parts[name];
  return html`<span class="parts">${Object.entries(parts).map(([name, value]) => html`<span class=${`part ${differs(name) ? "differs" : ""}`}>${name} <b>${figure(value)}</b>${differs(name) ? " ≠" : ""}</span> `)}</span>`;
}

export function versions(episode) {
  const { oldest_version: first, newest_version: last } = episode;
  if (first === null || first === undefined) return "–";
  return first === last ? String(first) : `${first}–${last}`;
}
