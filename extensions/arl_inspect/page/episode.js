// One episode: what came of it, its conversation beside its tokens, and what it was paid for.

import { Text } from "./body.js";
import { KINDS } from "./colours.js";
import { Parts, Verdict, versions } from "./columns.js";
import { Answer, useAnswer } from "./common.js";
import { Conversation } from "./conversation.js";
import { figure, text } from "./format.js";
import { Game } from "./game.js";
import { change, link, split } from "./hash.js";
import { Neighbours } from "./list.js";
import { Tokens } from "./tokens.js";
import { Tree } from "./tree.js";
import { html, useRef } from "./vendor/preact.js";

export function Episode({ source, about, options, tick, theme }) {
  const [run, id] = split(about);
  const isOver = useRef(false);
  const state = useAnswer(() => source.episode(run, id), [source, about, isOver.current ? 0 : tick]);
  // Until it is trained or dropped, more may come to be known of it.
  isOver.current = state.found !== null && (state.found.status === "dropped" || state.found.rows.every((row) => row.proximal || !row.trains.includes(1)));
  return html`<${Neighbours} source=${source} run=${run} id=${id} options=${options} tick=${tick} />
    <h1>Episode ${id} <span class="quiet">of ${run}</span></h1>
    <${Answer} state=${state}>${(found) => html`<${Found} run=${run} episode=${found} options=${options} theme=${theme} />`}<//>`;
}

function Found({ run, episode, options, theme }) {
  const kind = options.colour in KINDS ? options.colour : "version";
  const at = Math.min(Number(options.row) || 0, Math.max(episode.rows.length - 1, 0));
  const row = episode.rows[at];
  const isGame = episode.seats.length > 0;
  return html`<${Result} run=${run} episode=${episode} />
    ${episode.error && html`<pre class="error">${text(episode.error)}</pre>`}
    ${isForked(episode) && html`<${Tree} tree=${episode.tree} lineage=${row?.lineage} choose=${(lineage) => {
      const found = episode.rows.findIndex((each) => each.lineage === lineage);
      if (found >= 0) change({ row: found });
    }} />`}
    <div class=${isGame ? "" : "sides"}>
      <section aria-labelledby="said"><h2 id="said">${isGame ? "The game" : "Conversation"}</h2>
        ${isGame ? html`<${Game} seats=${episode.seats} moves=${episode.moves} of=${episode.id} />` : html`<${Conversation} messages=${episode.messages} />`}</section>
      <section aria-labelledby="tokens"><h2 id="tokens">Tokens</h2>
        ${episode.rows.length > 1 && html`<label class="bar">row
          <select value=${String(at)} onChange=${(e) => change({ row: e.target.value })}>
            ${episode.rows.map((each, i) => html`<option value=${String(i)}>${i}: conversation ${each.lineage}, ${each.tokens.length} tokens</option>`)}
          </select></label>`}
        ${row ? html`<${Tokens} key=${`${episode.id} ${at}`} row=${row} kind=${kind} theme=${theme} isWhole=${options.all === "1"} />` : html`<p class="quiet">nothing of it trains</p>`}
      </section>
    </div>
    <h2>Numbers</h2>
    <${Metrics} metrics=${episode.metrics} />
    <details><summary>Task</summary><${Text} value=${episode.task_data} /></details>
    ${episode.tools.length > 0 && html`<details><summary>Tools</summary><${Text} value=${episode.tools} /></details>`}`;
}

// What it came to: the answer beside the expected one, the verdict and the reward.
function Result({ run, episode }) {
  const facts = [
    ["reward", html`<b>${figure(episode.reward)}</b>`],
    ...(Object.keys(episode.parts).length ? [["parts of the reward", html`<${Parts} parts=${episode.parts} />`]] : []),
    ["outcome", html`<span class=${`state ${episode.outcome}`}>${episode.outcome}</span>`],
    ["turns", episode.turns],
    ["tokens", episode.tokens],
    ["version", versions(episode)],
    ["environment", episode.env],
    ["task", episode.task || "–"],
    ["group", html`<a href=${link("group", `${run}/${episode.group}`)}>${episode.group}</a> (${episode.cause || episode.status})`],
    ["batch", episode.step ?? "–"],
  ];
  const cells = [
    ["verdict", episode.verdict && html`<${Verdict} episode=${{ ...episode, verdict: text(episode.verdict) }} />`],
    ["expected", episode.expected && html`<${Text} value=${episode.expected} most=${600} lines=${8} />`],
    ["answer", episode.answer && !episode.seats.length && html`<${Text} value=${episode.answer} most=${600} lines=${8} />`],
  ].filter(([, value]) => value);
  return html`${cells.length > 0 && html`<dl class="result">${cells.map(([name, value]) => html`<div class=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// Whether the turns are more than one after the other (in a game: in each seat), or are paid.
function isForked({ tree, seats }) {
  const roots = tree.filter(({ parent }) => parent < 0).length;
  const children = new Set();
  const hasBranch = tree.some(({ parent }) => parent >= 0 && children.size === children.add(parent).size);
  return hasBranch || roots > Math.max(seats.length, 1) || tree.some(({ reward }) => reward);
}

function Metrics({ metrics }) {
  const there = Object.entries(metrics).filter(([, value]) => value !== 0);
  const none = Object.keys(metrics).filter((name) => metrics[name] === 0);
  return html`<dl class="facts">${there.map(([name, value]) => html`<div><dt>${name}</dt><dd>${figure(value)}</dd></div>`)}</dl>
    ${none.length > 0 && html`<details><summary>${none.length} that are 0</summary><p class="quiet">${none.join(", ")}</p></details>`}`;
}
