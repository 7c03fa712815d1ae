// A run's episodes, filtered and sorted; of a hundred thousand only those in sight are asked for.

import { useAnswer } from "./common.js";
import { count, counted, figure } from "./format.js";
import { change, link } from "./hash.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

const ROW = 30; // pixels
const PAGE = 200; // episodes of one request
const COLUMNS = [
  ["row", "no.", (e) => e.row],
  ["", "episode", (e) => e.id],
  ["", "outcome", (e) => e.outcome],
  ["reward", "reward", (e) => figure(e.reward)],
  ["turns", "turns", (e) => e.turns],
  ["tokens", "tokens", (e) => count(e.tokens)],
  ["step", "batch", (e) => e.step ?? "–"],
  ["", "group", (e) => `${e.group}, ${e.cause || e.status}`],
  ["", "forks", (e) => Object.entries(e.forks).map(([cause, n]) => `${cause} ${n}`).join(", ")],
  ["", "environment", (e) => e.env],
];
const NUMBERS = ["no.", "reward", "turns", "tokens", "batch"];
const FILTERS = ["outcome", "env", "fork", "status", "group", "step", "reward_min", "reward_max", "tokens_min", "tokens_max", "q"];

export function Episodes({ source, about: run, options, tick }) {
  const query = useMemo(() => {
    const found = { sort: options.sort || "-row" };
    for (const name of FILTERS) if (options[name]) found[name] = options[name];
    return found;
  }, [JSON.stringify(options)]);
  const facets = useAnswer(() => source.facets(run), [source, run, tick]);
  return html`<h1>Episodes of ${run}</h1>
    <${Filters} facets=${facets.found} options=${options} />
    ${facets.error && html`<p class="error" role="alert">${facets.error}</p>`}
    <${Table} key=${`${run} ${JSON.stringify(query)}`} source=${source} run=${run} query=${query}
      total=${facets.found?.episodes ?? null} />`;
}

function Filters({ facets, options }) {
  const select = (name, label, values, extra = []) => html`<label>${label}
    <select value=${options[name] ?? ""} onChange=${(e) => change({ [name]: e.target.value })}>
      <option value="">all</option>
      ${extra.map(([value, said]) => html`<option value=${value}>${said}</option>`)}
      ${options[name] && options[name] !== "any" && !(options[name] in (values ?? {})) && html`<option value=${options[name]}>${options[name]} (0)</option>`}
      ${Object.entries(values ?? {}).map(([value, n]) => html`<option value=${value}>${value} (${count(n)})</option>`)}
    </select></label>`;
  const number = (name, label, hint) => html`<label>${label}
    <input type="number" step="any" inputmode="decimal" value=${options[name] ?? ""} placeholder=${hint}
      onChange=${(e) => change({ [name]: e.target.value })} /></label>`;
  const [low, high] = facets?.reward ?? ["", ""];
  const [few, many] = facets?.tokens ?? ["", ""];
  const isFiltered = FILTERS.some((name) => options[name]);
  return html`<form class="filters" aria-label="filters" onSubmit=${(e) => e.preventDefault()}>
    ${select("outcome", "outcome", facets?.outcomes)}
    ${select("env", "environment", facets?.envs)}
    ${select("fork", "fork", facets?.forks, [["any", "any fork"]])}
    ${select("status", "group is", facets?.statuses)}
    ${number("reward_min", "reward from", figure(low))}
    ${number("reward_max", "reward to", figure(high))}
    ${number("tokens_min", "tokens from", figure(few))}
    ${number("tokens_max", "tokens to", figure(many))}
    ${number("step", "batch", "")}
    <label>id has
      <input type="search" value=${options.q ?? ""} placeholder="g12" onChange=${(e) => change({ q: e.target.value })} /></label>
    ${options.group && html`<label>group <input value=${options.group} onChange=${(e) => change({ group: e.target.value })} /></label>`}
    ${isFiltered && html`<button type="button" onClick=${() => change(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>no filters</button>`}
  </form>`;
}

function Table({ source, run, query, total }) {
  const [pages, setPages] = useState(() => new Map());
  const [known, setKnown] = useState(null);
  const [error, setError] = useState("");
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const place = useRef(null);
  const asked = useRef(new Set());
  const isThere = useRef(true);
  useEffect(() => () => (isThere.current = false), []);

  const ask = (page) => {
    if (asked.current.has(page)) return;
    asked.current.add(page);
    source.episodes(run, { ...query, offset: page * PAGE, limit: PAGE }).then(
      (found) => {
        if (!isThere.current) return;
        setPages((old) => new Map(old).set(page, found.episodes));
        setKnown((old) => old ?? found.total);
        setError("");
      },
      (failed) => {
        asked.current.delete(page);
        if (isThere.current) setError(failed.message);
      },
    );
  };
  const first = Math.max(Math.floor(top / ROW) - 10, 0);
  const last = Math.min(first + Math.ceil(height / ROW) + 20, (known ?? 1) - 1);
  useEffect(() => {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(last, 0) / PAGE); page += 1) ask(page);
  }, [first, last]);
  useEffect(() => {
    const fit = new ResizeObserver(() => setHeight(place.current.clientHeight));
    fit.observe(place.current);
    return () => fit.disconnect();
  }, []);

  const seen = useRef(null); // how many there were, of all, when this table was asked for
  const isFiltered = Object.keys(query).length > 1;
  if (known !== null && seen.current === null) seen.current = isFiltered ? total : known;
  const fresh = seen.current === null || total === null ? 0 : total - seen.current;
  const renew = () => {
    asked.current = new Set();
    seen.current = null;
    setPages(new Map());
    setKnown(null);
    place.current.scrollTop = 0;
    ask(0);
  };
  const at = (i) => pages.get(Math.floor(i / PAGE))?.[i % PAGE];
  const shown = [];
  for (let i = first; i <= last; i += 1) shown.push(i);
  return html`<p class="bar" role="status">
      ${known === null ? "reading …" : counted(known, "episode")}
      ${fresh > 0 && html`<button type="button" onClick=${renew}>${count(fresh)} new: show</button>`}
    </p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${known === 0 && html`<p>No episode is like that. <a href=${link("episodes", run)}>All of them</a></p>`}
    <div class=${known === 0 ? "grid none" : "grid"} ref=${place} tabindex="0" role="table" aria-label="episodes" aria-rowcount=${(known ?? 0) + 1}
      onScroll=${(e) => setTop(e.target.scrollTop)}>
      <div class="line head" role="row" aria-rowindex="1">
        ${COLUMNS.map(([sort, label]) => html`<div role="columnheader" class=${NUMBERS.includes(label) ? "number" : ""} aria-sort=${sorted(query.sort, sort)}>
          ${sort
            ? html`<button type="button" onClick=${() => change({ sort: next(query.sort, sort) })}>${label}${mark(query.sort, sort)}</button>`
            : label}
        </div>`)}
      </div>
      <div class="body" role="rowgroup" style=${{ height: `${(known ?? 0) * ROW}px` }}>
        ${shown.map((i) => html`<${Line} key=${i} i=${i} run=${run} episode=${at(i)} />`)}
      </div>
    </div>`;
}

function Line({ i, run, episode }) {
  return html`<div class="line" role="row" aria-rowindex=${i + 2} style=${{ top: `${i * ROW}px` }}>
    ${COLUMNS.map(([, label, cell]) => html`<div role="cell" class=${NUMBERS.includes(label) ? "number" : ""}
      title=${episode ? String(cell(episode)) : null}>${
      !episode ? (label === "episode" ? "…" : "")
      : label === "episode" ? html`<a href=${link("episode", `${run}/${episode.id}`)}>${episode.id}</a>`
      : label === "group" ? html`<a href=${link("group", `${run}/${episode.group}`)}>${cell(episode)}</a>`
      : label === "outcome" ? html`<span class=${`state ${episode.outcome}`}>${episode.outcome}</span>`
      : cell(episode)}</div>`)}
  </div>`;
}

const sorted = (now, sort) =>
  !sort ? null : now === sort ? "ascending" : now === `-${sort}` ? "descending" : "none";
const mark = (now, sort) => (now === sort ? " ▲" : now === `-${sort}` ? " ▼" : "");
const next = (now, sort) => (now === `-${sort}` ? sort : `-${sort}`);
