// The compared runs: line, state, rewards, and the keys of the configuration in which they differ.

import { Line } from "./chart.js";
import { figure } from "./format.js";
import { link } from "./hash.js";
import { factsOf, Failure, HeldOut, State } from "./state.js";
import { duration, moment } from "./times.js";
import { html } from "./vendor/preact.js";

// Keys that always differ, or do not matter to the result.
const FREE = ["run", "folder", "logging"];

// `runs`: [{run, i, summary, values, error}]; without `summary` and `values` as far as they are unknown.
export function Legend({ runs, hidden, toggle }) {
  const keys = differing(runs);
  const isMany = runs.length > 1;
  return html`<section class="legend-runs" aria-label="the runs">
    <div class="scroll" tabindex="0" role="region" aria-label="legend and differences of the configuration"><table role="table">
      <thead role="rowgroup"><tr role="row">
        ${isMany && html`<th role="columnheader" scope="col"><span class="hidden">shown</span></th>`}
        <th role="columnheader" scope="col">run</th><th role="columnheader" scope="col">state</th><th role="columnheader" scope="col">reward</th><th role="columnheader" scope="col">held-out</th>
        ${keys.map((key) => html`<th role="columnheader" scope="col" class="key">${dotted(key)}</th>`)}
      </tr></thead>
      <tbody role="rowgroup">${runs.map(({ run, i, summary, values, error }) => html`<tr role="row" key=${run}>
        ${isMany && html`<td role="cell" class="choose"><input type="checkbox" aria-label=${`show ${run}`} checked=${!hidden.includes(run)} onChange=${() => toggle(run)} /></td>`}
        <th role="rowheader" scope="row"><${Line} i=${i} /> <a href=${link("curves", run)}>${run}</a>
          ${!isMany && summary && html`<div class="facts-line">${factsOf(summary)} · began ${moment(summary.started_s)}, ${duration(summary.duration_s)}</div>
            ${summary.notes && html`<div class="facts-line note">${summary.notes}</div>`}`}
          ${error && html`<p class="failure">${error}</p>`}${summary && html`<${Failure} run=${summary} />`}</th>
        <td role="cell">${summary && html`<${State} run=${summary} />`}</td>
        <td role="cell" class="number" data-label="reward">${summary && figure(summary.reward)}</td>
        <td role="cell" data-label="held-out">${summary && html`<${HeldOut} run=${summary} />`}</td>
        ${keys.map((key) => html`<td role="cell" class=${`value ${String(values?.[key] ?? "").length > 20 ? "long" : ""}`} data-label=${key}>${values ? said(values[key]) : "…"}</td>`)}
      </tr>`)}</tbody>
    </table></div>
    ${isMany && keys.length === 0 && runs.every((it) => it.values) && html`<p class="quiet">All of them have the same configuration.</p>`}
  </section>`;
}

// A key may be broken after a dot.
const dotted = (key) => key.split(".").map((part, i, all) => (i < all.length - 1 ? html`${part}.<wbr />` : part));

function differing(runs) {
  const known = runs.filter(({ values }) => values).map(({ values }) => values);
  if (known.length < 2) return [];
  const keys = [...new Set(known.flatMap(Object.keys))].sort();
  const isFree = (key) => FREE.some((free) => key === free || key.startsWith(`${free}.`));
  return keys.filter((key) => !isFree(key) && new Set(known.map((values) => JSON.stringify(values[key]))).size > 1);
}

function said(value) {
  if (value === undefined) return html`<span class="quiet">unset</span>`;
  return typeof value === "string" ? value || '""' : JSON.stringify(value);
}
