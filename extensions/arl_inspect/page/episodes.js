// A run's episodes, filtered and sorted; of a hundred thousand only those in sight are asked for.

import { COLUMNS, columnsOf, Parts, Verdict } from "./columns.js";
import { useAnswer } from "./common.js";
import { count, counted, figure } from "./format.js";
import { change, link, read } from "./hash.js";
import { FILTERS, packed, queryOf, toEpisode, useKeys } from "./list.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

const ROW = 44; // pixels: two lines of text
const CARD = 114;
const PAGE = 200; // episodes of one request
const AGAIN_MS = 700; // until an answer that was not complete is asked for again
const NARROW = "(max-width: 700px)";
const RARE = ["fork", "status", "group", "step", "reward_min", "reward_max", "tokens_min", "tokens_max"];
const ORDERS = [["-row", "newest first"], ["row", "oldest first"], ["-reward", "highest reward"], ["reward", "lowest reward"],
  ["-tokens", "longest"], ["tokens", "shortest"], ["-turns", "most turns"], ["-step", "latest batch"]];

export function Episodes({ source, about: run, options, tick }) {
  const query = useMemo(() => queryOf(options), [JSON.stringify(options)]);
  const [again, askAgain] = useState(0);
  const facets = useAnswer(() => source.facets(run), [source, run, tick, again]);
  const isNarrow = useMedia(NARROW);
  useEffect(() => {
    if (facets.found?.complete !== false) return undefined;
    const later = setTimeout(() => askAgain((n) => n + 1), AGAIN_MS);
    return () => clearTimeout(later);
  }, [facets.found]);
  return html`<h1>Episodes of ${run}</h1>
    <${Filters} facets=${facets.found} options=${options} />
    ${facets.error && html`<p class="error" role="alert">${facets.error}</p>`}
    <${Table} key=${`${run} ${isNarrow} ${JSON.stringify(query)}`} source=${source} run=${run} query=${query} options=${options}
      facets=${facets.found} isNarrow=${isNarrow} total=${facets.found?.episodes ?? null} />`;
}

function useMedia(query) {
  const media = matchMedia(query);
  const [is, set] = useState(media.matches);
  useEffect(() => {
    const changed = () => set(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  return is;
}

function Filters({ facets, options }) {
  const field = useRef(null);
  useEffect(() => {
    if (!options.search) return;
    field.current.focus();
    change({ search: "" });
  }, [options.search]);
  useKeys({ "/": () => field.current.focus() });
  const select = (name, label, values, extra = []) => html`<label>${label}
    <select value=${options[name] ?? ""} onChange=${(e) => change({ [name]: e.target.value, at: "" })}>
      <option value="">all</option>
      ${extra.map(([value, said]) => html`<option value=${value}>${said}</option>`)}
      ${options[name] && options[name] !== "any" && !(options[name] in (values ?? {})) && html`<option value=${options[name]}>${options[name]} (0)</option>`}
      ${Object.entries(values ?? {}).map(([value, n]) => html`<option value=${value}>${value}${n === null ? "" : ` (${count(n)})`}</option>`)}
    </select></label>`;
  const number = (name, label, hint) => html`<label>${label}
    <input type="number" step="any" inputmode="decimal" value=${options[name] ?? ""} placeholder=${hint}
      onChange=${(e) => change({ [name]: e.target.value, at: "" })} /></label>`;
  const [low, high] = facets?.reward ?? ["", ""];
  const [few, many] = facets?.tokens ?? ["", ""];
  const seats = Object.fromEntries((facets?.seats ?? []).map((seat) => [seat, null]));
  const isFiltered = FILTERS.some((name) => options[name]);
  return html`<form class="filters" aria-label="filters" onSubmit=${(e) => e.preventDefault()}>
    <label class="search"><span>search <kbd>/</kbd></span>
      <input type="search" ref=${field} value=${options.q ?? ""} placeholder="words of questions, replies, ids"
        aria-keyshortcuts="/" onChange=${(e) => change({ q: e.target.value, at: "" })} /></label>
    ${select("outcome", "outcome", facets?.outcomes)}
    ${(options.env || Object.keys(facets?.envs ?? {}).length > 1) && select("env", "environment", facets?.envs)}
    ${(options.seat || (facets?.seats ?? []).length > 0) && select("seat", "seat", seats)}
    ${number("version", "version", "any")}
    <label class="order">order
      <select value=${options.sort || "-row"} onChange=${(e) => change({ sort: e.target.value, at: "" })}>
        ${ORDERS.map(([value, said]) => html`<option value=${value}>${said}</option>`)}
        ${options.sort && !ORDERS.some(([value]) => value === options.sort) && html`<option value=${options.sort}>${options.sort}</option>`}
      </select></label>
    ${isFiltered && html`<button type="button" onClick=${() => change(Object.fromEntries([...FILTERS, "at"].map((name) => [name, ""])))}>no filters</button>`}
    <details class="more" open=${RARE.some((name) => options[name])}><summary>more filters</summary><div class="filters">
      ${number("reward_min", "reward from", figure(low))}
      ${number("reward_max", "reward to", figure(high))}
      ${number("tokens_min", "tokens from", figure(few))}
      ${number("tokens_max", "tokens to", figure(many))}
      ${number("step", "batch", "any")}
      ${select("status", "group is", facets?.statuses)}
      ${select("fork", "fork", facets?.forks, [["any", "any fork"]])}
      <label>group <input value=${options.group ?? ""} placeholder="g12" onChange=${(e) => change({ group: e.target.value, at: "" })} /></label>
    </div></details>
  </form>`;
}

// The pages of a list that were asked for, and how many episodes it has.
function usePages({ source, run, query, total }) {
  const [pages, setPages] = useState(() => new Map());
  const [answer, setAnswer] = useState(null); // of the last page: total, complete, searched
  const [error, setError] = useState("");
  const [asked] = useState(() => new Set());
  const isThere = useRef(true);
  const seen = useRef(null); // how many there were, of all, when this list was asked for
  useEffect(() => () => (isThere.current = false), []);
  const ask = (page) => {
    if (asked.has(page)) return;
    asked.add(page);
    source.episodes(run, { ...query, offset: page * PAGE, limit: PAGE }).then(
      (found) => {
        if (!isThere.current) return;
        setPages((old) => new Map(old).set(page, found.episodes));
        setAnswer((old) => (old?.complete ? old : found));
        setError("");
      },
      (failed) => {
        asked.delete(page);
        if (isThere.current) setError(failed.message);
      },
    );
  };
  useEffect(() => {
    if (answer?.complete !== false) return undefined;
    const later = setTimeout(() => {
      const before = [...asked];
      asked.clear();
      before.forEach(ask);
    }, AGAIN_MS);
    return () => clearTimeout(later);
  }, [answer]);
  const isFiltered = Object.keys(query).length > 1;
  if (answer && (seen.current === null || !answer.complete)) seen.current = isFiltered ? total : answer.total;
  const fresh = seen.current === null || total === null ? 0 : total - seen.current;
  const renew = () => {
    asked.clear();
    seen.current = null;
    setPages(new Map());
    setAnswer(null);
    ask(0);
  };
  return { ask, answer, error, fresh, renew, pages, at: (i) => pages.get(Math.floor(i / PAGE))?.[i % PAGE] };
}

function Table({ source, run, query, options, facets, isNarrow, total }) {
  const { ask, answer, error, fresh, renew, pages, at } = usePages({ source, run, query, total });
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [chosen, choose] = useState(null); // the row that the keyboard is at
  const place = useRef(null);
  const size = isNarrow ? CARD : ROW;
  const known = answer?.total ?? null;
  const first = Math.max(Math.floor(top / size) - 10, 0);
  const last = Math.min(first + Math.ceil(height / size) + 20, (known ?? 1) - 1);
  useEffect(() => {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(last, 0) / PAGE); page += 1) ask(page);
  }, [first, last]);
  useEffect(() => {
    const fit = new ResizeObserver(() => setHeight(place.current.clientHeight));
    fit.observe(place.current);
    return () => fit.disconnect();
  }, []);
  const show = (i, share = 0.4) => {
    const box = place.current;
    const head = isNarrow ? 0 : 34;
    const [from, to] = [i * size, (i + 1) * size + head];
    if (from < box.scrollTop || to > box.scrollTop + box.clientHeight) box.scrollTop = from - share * box.clientHeight;
    choose(i);
  };
  const move = (step) => {
    if (!known) return;
    show(Math.min(Math.max((chosen ?? (step > 0 ? -1 : known)) + step, 0), known - 1));
  };
  useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1) });
  useReturn({ source, run, query, options, known, show });
  useEffect(() => { // the link of the row that was chosen gets the focus, as soon as it is drawn
    if (chosen !== null) place.current.querySelector(`[data-i="${chosen}"] a`)?.focus({ preventScroll: true });
  }, [chosen, first, last, pages]);
  const columns = columnsOf(options, pages.values().next().value ?? [], facets);
  const layout = { gridTemplateColumns: columns.map((name) => COLUMNS[name].width).join(" ") };
  const shown = [];
  for (let i = first; i <= last; i += 1) shown.push(i);
  const context = { run, list: packed(options) };
  return html`<div class="bar">
      <p role="status">${known === null ? "reading …" : counted(known, "episode")}${reading(answer, query, total)}</p>
      ${fresh > 0 && html`<button type="button" onClick=${() => (renew(), (place.current.scrollTop = 0))}>${count(fresh)} new: show</button>`}
      ${!isNarrow && html`<${Chooser} columns=${columns} />`}
      <p class="keys quiet"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>Enter</kbd> opens, <kbd>/</kbd> searches</p>
    </div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${known === 0 && answer.complete && html`<p>No episode is like that. <a href=${link("episodes", run)}>All of them</a></p>`}
    <div class=${`grid ${known === 0 ? "none" : ""} ${isNarrow ? "cards" : ""}`} ref=${place} tabindex="0" role="table" aria-label="episodes"
      aria-rowcount=${(known ?? 0) + 1} onScroll=${(e) => setTop(e.target.scrollTop)}>
      ${!isNarrow && html`<div class="line head" role="row" aria-rowindex="1" style=${layout}>
        ${columns.map((name) => html`<${Head} key=${name} column=${COLUMNS[name]} now=${query.sort} />`)}
      </div>`}
      <div class="body" role="rowgroup" style=${{ height: `${(known ?? 0) * size}px` }}>
        ${shown.map((i) => (isNarrow
          ? html`<${Card} key=${i} i=${i} episode=${at(i)} context=${context} isChosen=${i === chosen} />`
          : html`<${Line} key=${i} i=${i} episode=${at(i)} columns=${columns} layout=${layout} context=${context} isChosen=${i === chosen} />`))}
      </div>
    </div>`;
}

// Back from an episode, the table stands where it is (`at` in the address).
function useReturn({ source, run, query, options, known, show }) {
  const [found, find] = useState(null);
  useEffect(() => {
    if (!options.at) return undefined;
    let isWanted = true;
    source.place(run, options.at, query).then(({ place }) => isWanted && find(place), () => {}); // without it, it stands at the top
    return () => (isWanted = false);
  }, [options.at]);
  useEffect(() => {
    if (!found || !known) return;
    find(null);
    show(found - 1);
  }, [found, known]);
}

// What is still missing in an answer.
function reading(answer, query, total) {
  if (!answer || answer.complete) return "";
  const isSearch = query.q || query.seat || query.version;
  return isSearch ? `: searched ${count(answer.searched)} of ${count(total ?? answer.searched)} so far …` : ", reading older ones …";
}

function Chooser({ columns }) {
  const [isOpen, open] = useState(false);
  const toggle = (name) => {
    const next = columns.includes(name) ? columns.filter((it) => it !== name) : [...columns, name];
    change({ columns: Object.keys(COLUMNS).filter((it) => next.includes(it) || it === "id").join(".") });
  };
  return html`<details class="chooser" onToggle=${(e) => open(e.target.open)}><summary>columns</summary>
    ${isOpen && html`<fieldset><legend class="hidden">columns</legend>
      ${Object.entries(COLUMNS).filter(([name]) => name !== "id").map(([name, { label }]) => html`<label>
        <input type="checkbox" checked=${columns.includes(name)} onChange=${() => toggle(name)} /> ${label}</label>`)}
      ${read().options.columns && html`<button type="button" onClick=${() => change({ columns: "" })}>the usual ones</button>`}
    </fieldset>`}</details>`;
}

function Head({ column: { label, sort, number }, now }) {
  return html`<div role="columnheader" class=${number ? "number" : ""} aria-sort=${sorted(now, sort)}>
    ${sort ? html`<button type="button" onClick=${() => change({ sort: next(now, sort), at: "" })}>${label}${mark(now, sort)}</button>` : label}
  </div>`;
}

// A click anywhere in a row opens its episode, unless it is on a link or marks text.
const open = (event) => {
  if (event.target.closest("a") || getSelection()?.toString()) return;
  event.currentTarget.querySelector("a")?.click();
};

function Line({ i, episode, columns, layout, context, isChosen }) {
  return html`<div class=${`line ${isChosen ? "chosen" : ""}`} role="row" aria-rowindex=${i + 2} data-i=${i} style=${{ ...layout, top: `${i * ROW}px` }} onClick=${open}>
    ${columns.map((name) => html`<div role="cell" class=${`cell-${name} ${COLUMNS[name].number ? "number" : ""}`}
      title=${episode && typeof episode[name] === "string" ? episode[name] : null}><span class="text">${
      episode ? COLUMNS[name].cell(episode, context) : name === "id" ? "…" : ""}</span></div>`)}
  </div>`;
}

function Card({ i, episode, context, isChosen }) {
  return html`<div class=${`line card ${isChosen ? "chosen" : ""}`} role="row" aria-rowindex=${i + 2} data-i=${i} style=${{ top: `${i * CARD}px` }} onClick=${open}>
    <div role="cell">${!episode ? "…" : html`
      <p class="bar"><a href=${toEpisode(context.run, episode.id, context.list)}>${episode.id}</a> <${Verdict} episode=${episode} />
        <span class="end">reward <b>${figure(episode.reward)}</b></span></p>
      <p class="question">${episode.question}</p>
      <p class="answer">${episode.answer || "–"}</p>
      <p class="quiet one">${episode.expected ? html`expected <b>${episode.expected}</b> · ` : ""}${counted(episode.turns, "turn")} · ${counted(episode.tokens, "token")}
        ${Object.keys(episode.seats).length + Object.keys(episode.parts).length > 1 && html` · <${Parts} parts=${{ ...episode.seats, ...episode.parts }} />`}</p>`}</div>
  </div>`;
}

const sorted = (now, sort) =>
  !sort ? null : now === sort ? "ascending" : now === `-${sort}` ? "descending" : "none";
const mark = (now, sort) => (now === sort ? " ▲" : now === `-${sort}` ? " ▼" : "");
const next = (now, sort) => (now === `-${sort}` ? sort : `-${sort}`);
