// Metrics of one run or several over their batches; which ones, and how, is in the address.

import { Chart } from "./chart.js";
import { Answer, useAnswer } from "./common.js";
import { figure } from "./format.js";
import { change, link } from "./hash.js";
import { moveInRows } from "./keyboard.js";
import { Legend } from "./legend.js";
import { grouped, namesOf, readNames, titleOf, usualOf, written } from "./metrics.js";
import { html, useEffect, useMemo, useState } from "./vendor/preact.js";

const MOST_SMOOTH = 50; // batches

export function Curves({ source, about, options, tick, theme }) {
  const list = useAnswer(() => source.runs(), [source, tick]);
  const summaries = new Map((list.found?.runs ?? []).map((run) => [run.id, run]));
  const runs = list.found ? idsOf(about, summaries) : [];
  const which = runs.join("/");
  useEffect(() => {
    if (which && which !== about) location.replace(link("curves", which, options));
  }, [which, about]);
  const state = useAnswer(() => (list.found ? Promise.all(runs.map((run) => metricsOf(source, run))) : new Promise(() => {})), [source, which, tick, !list.found]);
  const configs = useAnswer(() => Promise.all(runs.map((run) => source.config(run).then(({ values }) => values, () => null))), [source, which]);
  return html`<h1>${runs.length > 1 ? `Curves of ${runs.length} runs` : `Curves of ${runs[0] ?? about}`}</h1>
    <${Answer} state=${state.found ? state : { ...state, error: state.error || list.error }}>${(found) => html`<${Drawn} source=${source} theme=${theme} options=${options}
      runs=${found.map((it, i) => ({ ...it, i, summary: summaries.get(it.run), values: configs.found?.[i] ?? null }))} />`}<//>`;
}

// Runs are separated by slashes, which no name has; by commas in links of earlier versions.
function idsOf(about, known) {
  if (about.includes("/") || known.has(about)) return about.split("/").filter(Boolean);
  return about.split(",").filter(Boolean);
}

async function metricsOf(source, run) {
  try {
    return { run, ...(await source.metrics(run)), error: "" };
  } catch (error) {
    return { run, rows: [], evaluations: [], error: error.message };
  }
}

function Drawn({ source, theme, options, runs }) {
  const names = useMemo(() => namesOf(runs), [JSON.stringify(runs.map(({ run, rows, evaluations }) => [run, rows.length, evaluations.length]))]);
  const usual = usualOf(names);
  const chosen = options.metrics === undefined ? usual : readNames(options.metrics);
  const choose = (next) => change({ metrics: next.join() === usual.join() ? "" : written(next) || "\\" });
  const smooth = Math.min(Math.max(Math.round(Number(options.smooth)) || 1, 1), MOST_SMOOTH);
  const hidden = (options.hide ?? "").split("/").filter(Boolean);
  const toggle = (run) => change({ hide: (hidden.includes(run) ? hidden.filter((it) => it !== run) : [...hidden, run]).join("/") });
  const lines = runs.filter(({ run }) => !hidden.includes(run));
  const isLiving = runs.some(({ summary }) => summary?.status === "running");
  return html`<${Legend} runs=${runs} hidden=${hidden} toggle=${toggle} />
    <div class="curves">
      <${Picker} names=${names} chosen=${chosen} usual=${usual} choose=${choose} runs=${lines} />
      <div>
        <div class="tools"><label class="smooth">smoothing
            <input type="range" min="1" max=${MOST_SMOOTH} value=${smooth} aria-valuetext=${smooth > 1 ? `mean of ${smooth} batches` : "off"} onInput=${(e) => change({ smooth: e.target.value === "1" ? "" : e.target.value })} />
            <output>${smooth > 1 ? `mean of ${smooth} batches` : "off"}</output></label>
          <span class="quiet hint">Drag over a chart to look closer, double-click to see all; ← → on a chart read its values.</span></div>
        ${names.size === 0
          ? html`<p class="quiet" role="status">${isLiving ? "No batch is trained yet; the curves appear with the first." : "No batch was trained, so there are no curves."}</p>`
          : chosen.length === 0 && html`<p class="quiet">No metric is chosen.</p>`}
        <div class="charts">${chosen.filter((name) => names.size > 0).map((name) => html`<${Chart} key=${name} name=${name} lines=${lines} theme=${theme} smooth=${smooth} />`)}</div>
      </div>
    </div>
    ${runs.map(({ run }) => html`<${Configuration} key=${run} source=${source} run=${run} />`)}`;
}

function Picker({ names, chosen, usual, choose, runs }) {
  const [search, find] = useState("");
  const groups = grouped(names, search);
  const found = groups.flatMap(([, of]) => of);
  const toggle = (name) => choose(chosen.includes(name) ? chosen.filter((it) => it !== name) : [...chosen, name]);
  const keys = (event) => {
    moveInRows(event);
    if (!event.target.matches?.("[data-search]")) return;
    if (event.key === "Enter" && found.length) toggle(found[0]);
    if (event.key === "Escape") find("");
  };
  const isWide = matchMedia("(min-width: 901px)").matches;
  return html`<details class="picker" open=${isWide}><summary>Metrics <span class="quiet">${chosen.length} of ${names.size}</span></summary>
    <div onKeyDown=${keys}>
      <input type="search" data-search aria-label="search metrics" placeholder="search metrics ( / )" value=${search} onInput=${(e) => find(e.target.value)} />
      <p class="bar"><button type="button" disabled=${chosen.join() === usual.join()} onClick=${() => choose(usual)}>usual</button>
        ${search && html`<button type="button" disabled=${!found.length} onClick=${() => choose([...new Set([...chosen, ...found])])}>add ${found.length} found</button>
          <button type="button" disabled=${!found.length} onClick=${() => choose(found)}>only these</button>`}
        <button type="button" disabled=${!chosen.length} onClick=${() => choose([])}>none</button></p>
      ${groups.map(([title, of]) => html`<details key=${title} open=${search !== "" || of.some((name) => chosen.includes(name))}>
        <summary>${title} <span class="quiet">${of.filter((name) => chosen.includes(name)).length}/${of.length}</span></summary>
        <ul>${of.map((name) => html`<li key=${name}><label title=${titleOf(name)}><input type="checkbox" data-row checked=${chosen.includes(name)} onChange=${() => toggle(name)} />
          <span>${name}</span> <span class="quiet number">${newest(runs, name)}</span></label></li>`)}</ul>
      </details>`)}
      ${names.size > 0 && found.length === 0 && html`<p class="quiet">No metric has all of these words.</p>`}
    </div></details>`;
}

// Of one run: the newest value, as a help to choose.
function newest(runs, name) {
  if (runs.length !== 1) return "";
  const all = name.startsWith("eval/") ? runs[0].evaluations : runs[0].rows;
  for (let at = all.length - 1; at >= 0; at--) if (typeof all[at][name] === "number") return figure(all[at][name]);
  return "";
}

function Configuration({ source, run }) {
  const [isOpen, open] = useState(false);
  return html`<details onToggle=${(e) => open(e.target.open)}><summary>Configuration of ${run}</summary>
    ${isOpen && html`<${Toml} source=${source} run=${run} />`}</details>`;
}

function Toml({ source, run }) {
  const state = useAnswer(() => source.config(run), [source, run]);
  return html`<${Answer} state=${state}>${({ toml }) => html`<pre>${toml}</pre>`}<//>`;
}
