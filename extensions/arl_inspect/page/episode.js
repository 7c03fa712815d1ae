// One episode: its conversation beside its tokens, what it was paid, and for what.

import { KINDS } from "./colours.js";
import { Answer, useAnswer } from "./common.js";
import { Conversation } from "./conversation.js";
import { figure, text } from "./format.js";
import { change, link, split } from "./hash.js";
import { Tokens } from "./tokens.js";
import { Tree } from "./tree.js";
import { html, useRef } from "./vendor/preact.js";

export function Episode({ source, about, options, tick, theme }) {
  const [run, id] = split(about);
  const isOver = useRef(false);
  const state = useAnswer(() => source.episode(run, id), [source, about, isOver.current ? 0 : tick]);
  // Until it is trained or dropped, more may come to be known of it.
  isOver.current = state.found !== null && (state.found.status === "dropped" || state.found.rows.every((row) => row.proximal || !row.trains.includes(1)));
  return html`<h1>Episode ${id} <span class="quiet">of ${run}</span></h1>
    <${Answer} state=${state}>${(found) => html`<${Found} run=${run} episode=${found} options=${options} theme=${theme} />`}<//>`;
}

function Found({ run, episode, options, theme }) {
  const kind = options.colour in KINDS ? options.colour : "version";
  const at = Math.min(Number(options.row) || 0, Math.max(episode.rows.length - 1, 0));
  const row = episode.rows[at];
  const facts = [
    ["outcome", html`<span class=${`state ${episode.outcome}`}>${episode.outcome}</span>`],
    ["reward", figure(episode.reward)],
    ...(episode.verdict ? [["verdict", html`<b>${text(episode.verdict)}</b>`]] : []),
    ["turns", episode.turns],
    ["tokens", episode.tokens],
    ["environment", episode.env],
    ["task", episode.task],
    ["group", html`<a href=${link("group", `${run}/${episode.group}`)}>${episode.group}</a> (${episode.cause || episode.status})`],
    ["batch", episode.step ?? "–"],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${episode.error && html`<pre class="error">${text(episode.error)}</pre>`}
    <${Tree} tree=${episode.tree} lineage=${row?.lineage} choose=${(lineage) => {
      const found = episode.rows.findIndex((each) => each.lineage === lineage);
      if (found >= 0) change({ row: found });
    }} />
    <div class="sides">
      <section aria-labelledby="said"><h2 id="said">Conversation</h2><${Conversation} messages=${episode.messages} /></section>
      <section aria-labelledby="tokens"><h2 id="tokens">Tokens</h2>
        ${episode.rows.length > 1 && html`<label class="bar">row
          <select value=${String(at)} onChange=${(e) => change({ row: e.target.value })}>
            ${episode.rows.map((each, i) => html`<option value=${String(i)}>${i}: conversation ${each.lineage}, ${each.tokens.length} tokens</option>`)}
          </select></label>`}
        ${row ? html`<${Tokens} key=${at} row=${row} kind=${kind} theme=${theme} />` : html`<p class="quiet">nothing of it trains</p>`}
      </section>
    </div>
    <h2>Numbers</h2>
    <${Metrics} metrics=${episode.metrics} />
    <details><summary>Task</summary><pre>${text(episode.task_data)}</pre></details>
    ${episode.tools.length > 0 && html`<details><summary>Tools</summary><pre>${text(episode.tools)}</pre></details>`}`;
}

function Metrics({ metrics }) {
  const there = Object.entries(metrics).filter(([, value]) => value !== 0);
  const none = Object.keys(metrics).filter((name) => metrics[name] === 0);
  return html`<dl class="facts">${there.map(([name, value]) => html`<div><dt>${name}</dt><dd>${figure(value)}</dd></div>`)}</dl>
    ${none.length > 0 && html`<details><summary>${none.length} that are 0</summary><p class="quiet">${none.join(", ")}</p></details>`}`;
}
