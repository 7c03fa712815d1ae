// The runs that are here: curve, held-out reward, state; to search, sort, annotate and compare.

import { Answer, useAnswer } from "./common.js";
import { count, counted, figure } from "./format.js";
import { change, link } from "./hash.js";
import { moveInRows } from "./keyboard.js";
import { NotesForm, Tags } from "./notes.js";
import { Sparkline } from "./sparkline.js";
import { factsOf, Failure, HeldOut, rangeOf, State } from "./state.js";
import { duration, moment } from "./times.js";
import { html, useState } from "./vendor/preact.js";

const USUAL = "-began";
// By name: the value that is compared, and whether the largest comes first at the first click.
const SORTS = {
  began: [(run) => run.started_s, true],
  name: [(run) => run.id.toLowerCase(), false],
  state: [(run) => run.status, false],
  reward: [(run) => run.reward, true],
  "held-out": [(run) => run.held_out?.reward ?? null, true],
  duration: [(run) => run.duration_s, true],
  episodes: [(run) => run.episodes, true],
};

export function Runs({ source, options, tick }) {
  const [saved, renew] = useState(0);
  const state = useAnswer(() => source.runs(), [source, tick, saved]);
  return html`<h1>Runs</h1>
    <${Answer} state=${state}>${({ runs, can_write: canWrite }) =>
      runs.length === 0
        ? html`<p>No runs here yet. <code>arl train --env math --agent react</code> makes one.</p>`
        : html`<${List} source=${source} runs=${runs} options=${options} canWrite=${canWrite && source.isLive} renew=${() => renew((n) => n + 1)} />`}<//>`;
}

function List({ source, runs, options, canWrite, renew }) {
  const [edited, edit] = useState("");
  const sort = options.sort || USUAL;
  const shown = sorted(runs.filter((run) => matches(run, options.q ?? "")), sort);
  const known = new Set(runs.map((run) => run.id));
  const chosen = (options.chosen ?? "").split("/").filter((id) => known.has(id));
  const choose = (ids) => change({ chosen: ids.join("/") });
  const toggle = (id) => choose(chosen.includes(id) ? chosen.filter((it) => it !== id) : [...chosen, id]);
  const range = rangeOf(shown);
  const keys = (event) => {
    moveInRows(event);
    const row = event.target instanceof Element ? event.target.closest("[data-row]") : null;
    if (event.key === "x" && row) toggle(row.dataset.row);
  };
  return html`<div onKeyDown=${keys}>
    <${Tools} runs=${runs} shown=${shown} chosen=${chosen} choose=${choose} options=${options} sort=${sort} />
    <table class="runs" role="table" aria-label="runs">
      <thead role="rowgroup"><tr role="row">
        <th role="columnheader" scope="col"><span class="hidden">chosen</span></th>
        <${Head} name="name" sort=${sort}>run<//>
        <${Head} name="reward" sort=${sort}>training reward<//>
        <${Head} name="held-out" sort=${sort}>held-out reward<//>
        <${Head} name="state" sort=${sort}>state<//>
        <${Head} name="began" sort=${sort}>began<//>
        <${Head} name="episodes" sort=${sort}>episodes<//>
      </tr></thead>
      <tbody role="rowgroup">${shown.map((run) => html`<${Run} key=${run.id} source=${source} run=${run} range=${range}
        isChosen=${chosen.includes(run.id)} toggle=${() => toggle(run.id)} canWrite=${canWrite}
        isEdited=${edited === run.id} edit=${(is) => edit(is ? run.id : "")} renew=${renew} />`)}</tbody>
    </table>
    ${shown.length === 0 && html`<p>No run has all of these words. <button type="button" onClick=${() => change({ q: "" })}>Show all runs</button></p>`}
  </div>`;
}

function Tools({ runs, shown, chosen, choose, options, sort }) {
  const isAll = shown.length > 0 && shown.every((run) => chosen.includes(run.id));
  const first = (event) => {
    if (event.key === "Enter" && shown.length) location.hash = link("curves", shown[0].id);
    if (event.key === "Escape") change({ q: "" });
  };
  return html`<div class="tools">
    <label class="search"><span class="hidden">search runs</span>
      <input type="search" data-search placeholder="search name, environment, model, tag … ( / )" value=${options.q ?? ""}
        onInput=${(e) => change({ q: e.target.value })} onKeyDown=${first} /></label>
    <label>sort by <select value=${sort} onChange=${(e) => change({ sort: e.target.value })}>
      ${Object.entries(SORTS).flatMap(([name, [, isDown]]) => {
        const both = isDown ? [`-${name}`, name] : [name, `-${name}`];
        return both.map((value) => html`<option value=${value}>${saidOf(name, value.startsWith("-"))}</option>`);
      })}</select></label>
    <span class="quiet" role="status">${shown.length === runs.length ? counted(runs.length, "run") : `${shown.length} of ${counted(runs.length, "run")}`}</span>
    <span class="compare">
      <button type="button" onClick=${() => choose(isAll ? [] : shown.map((run) => run.id))}>${isAll ? "choose none" : "choose all"}</button>
      <a class=${`button ${chosen.length ? "main" : "off"}`} aria-disabled=${chosen.length ? "false" : "true"}
        href=${chosen.length ? link("curves", chosen.join("/")) : link("runs")}>${chosen.length > 1 ? `Compare ${chosen.length} runs` : chosen.length ? "Curves of 1 run" : "Compare runs"}</a>
    </span>
  </div>`;
}

const ENDS = {
  began: ["oldest first", "newest first"],
  name: ["name, A to Z", "name, Z to A"],
  state: ["state, A to Z", "state, Z to A"],
  duration: ["shortest", "longest"],
};
const saidOf = (name, isDown) => (ENDS[name] ?? [`${name}, lowest first`, `${name}, highest first`])[isDown ? 1 : 0];

function Head({ name, sort, children }) {
  const isOn = sort.replace(/^-/, "") === name;
  const isDown = sort.startsWith("-");
  const next = isOn ? !isDown : SORTS[name][1];
  return html`<th role="columnheader" scope="col" aria-sort=${isOn ? (isDown ? "descending" : "ascending") : null}>
    <button type="button" onClick=${() => change({ sort: `${next ? "-" : ""}${name}` })}>${children}${isOn && html`<span aria-hidden="true"> ${isDown ? "↓" : "↑"}</span>`}</button></th>`;
}

function Run({ source, run, range, isChosen, toggle, canWrite, isEdited, edit, renew }) {
  const close = () => edit(false);
  return html`<tr role="row" class=${isChosen ? "chosen" : ""}>
    <td role="cell" class="choose"><input type="checkbox" aria-label=${`choose ${run.id}`} checked=${isChosen} onChange=${toggle} /></td>
    <td role="cell" class="what">
      <a class="run-name" data-row=${run.id} href=${link("curves", run.id)}>${run.id}</a>
      <div class="quiet">${factsOf(run)}</div>
      <${Failure} run=${run} />
      ${isEdited
        ? html`<${NotesForm} source=${source} run=${run} close=${close} saved=${() => (close(), renew())} />`
        : html`<div class="annotated"><${Tags} run=${run} onTag=${(tag) => change({ q: tag })} />${run.notes && html`<span class="note">${run.notes}</span>`}
            ${canWrite && html`<button type="button" class="plain" aria-label=${`edit notes and tags of ${run.id}`} onClick=${() => edit(true)}>${run.notes || run.tags?.length ? "edit" : "+ note"}</button>`}</div>`}
    </td>
    <td role="cell" class="curve-cell"><${Sparkline} run=${run} />${(run.curve.length > 0 || (run.kind === "eval" && !run.held_out)) && html`<span class="number" title=${run.kind === "eval" ? "reward on training tasks" : "mean of the last 5 batches"}>${figure(run.reward)}</span>`}</td>
    <td role="cell" data-label="held-out"><${HeldOut} run=${run} range=${range} /></td>
    <td role="cell"><${State} run=${run} /></td>
    <td role="cell" data-label="began">${moment(run.started_s)}<div class="quiet">${duration(run.duration_s)}</div></td>
    <td role="cell"><a href=${link("episodes", run.id)}>${count(run.episodes)} <span class="unit">${run.episodes === 1 ? "episode" : "episodes"}</span></a></td>
  </tr>`;
}

// All words, in any order, anywhere in what describes the run.
function matches(run, q) {
  const told = [run.id, run.path, run.env, run.agent, run.engine, run.model, `seed ${run.seed}`, run.status, run.kind, run.failure, run.error, run.notes, ...(run.tags ?? [])];
  const text = told.filter(Boolean).join("\n").toLowerCase();
  return q.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

// Unknown values come last, whatever the direction; equal ones are sorted by name.
function sorted(runs, sort) {
  const [value] = SORTS[sort.replace(/^-/, "")] ?? SORTS.began;
  const sign = sort.startsWith("-") ? -1 : 1;
  const isUnknown = (it) => it === null || it === undefined;
  return [...runs].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (isUnknown(a) || isUnknown(b)) return isUnknown(a) - isUnknown(b);
    return a < b ? -sign : a > b ? sign : one.id.localeCompare(other.id);
  });
}
