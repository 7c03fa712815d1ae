// The list of episodes that a view belongs to: its filters and order, as options in the address.

import { useAnswer } from "./common.js";
import { count } from "./format.js";
import { link } from "./hash.js";
import { html, useEffect, useRef } from "./vendor/preact.js";

export const FILTERS = ["outcome", "env", "seat", "version", "fork", "status", "group", "step",
  "reward_min", "reward_max", "tokens_min", "tokens_max", "q"];
const KEPT = [...FILTERS, "sort", "columns"];

// The query that the options of a table make.
export function queryOf(options) {
  const found = { sort: options.sort || "-row" };
  for (const name of FILTERS) if (options[name]) found[name] = options[name];
  return found;
}

// The options of a table as one text, for the option `in` of an episode's address; and back.
export function packed(options) {
  return new URLSearchParams(KEPT.filter((name) => options[name]).map((name) => [name, options[name]])).toString();
}

export function unpacked(text = "") {
  return Object.fromEntries([...new URLSearchParams(text)].filter(([name]) => KEPT.includes(name)));
}

export const toEpisode = (run, id, list = "") => link("episode", `${run}/${id}`, { in: list });

// The way back to the episode's place in its list, and to the episodes before and after it.
export function Neighbours({ source, run, id, options, tick }) {
  const list = unpacked(options.in);
  // At an end of the list, what comes next may be recorded meanwhile.
  const isBetween = useRef(false);
  const state = useAnswer(() => source.place(run, id, queryOf(list)), [source, run, id, options.in, isBetween.current ? 0 : tick]);
  const { place = 0, previous = null, next = null, total = 0 } = state.found ?? {};
  isBetween.current = previous !== null && next !== null;
  const back = link("episodes", run, { ...list, at: id });
  const keep = { colour: options.colour, all: options.all, in: options.in };
  const to = (other) => link("episode", `${run}/${other}`, keep);
  useKeys({
    j: () => next && (location.hash = to(next)),
    k: () => previous && (location.hash = to(previous)),
    // Without the episode's place: its row would take the focus from the search field.
    "/": () => (location.hash = link("episodes", run, { ...list, search: 1 })),
    u: () => (location.hash = back),
  });
  const step = (other, label, key) => other
    ? html`<a class="button" rel=${label} href=${to(other)} aria-keyshortcuts=${key}>${label} <kbd>${key}</kbd></a>`
    : html`<span class="button off" aria-disabled="true">${label} <kbd>${key}</kbd></span>`;
  return html`<nav class="neighbours" aria-label="episodes">
    <a class="button" href=${back} aria-keyshortcuts="u">to the list <kbd>u</kbd></a>
    ${step(previous, "previous", "k")}
    ${step(next, "next", "j")}
    <span class="quiet" role="status">${place ? `${count(place)} of ${count(total)}` : state.found ? "not in this list" : ""}${options.in && place ? ` · ${said(list)}` : ""}</span>
  </nav>`;
}

// A list in words: its filters, and its order unless it is the usual one.
function said(list) {
  const filters = FILTERS.filter((name) => list[name]).map((name) => `${NAMES[name] ?? name} ${list[name]}`);
  const order = list.sort && list.sort !== "-row" ? [`by ${list.sort.replace(/^-(.*)/, "$1, descending")}`] : [];
  return [...filters, ...order].join(", ");
}

const NAMES = { q: "with", env: "environment", status: "group is", step: "batch", reward_min: "reward from",
  reward_max: "reward to", tokens_min: "tokens from", tokens_max: "tokens to" };

// Call `keys[key]` for keys that are pressed outside of fields, and with no other key held.
export function useKeys(keys) {
  useEffect(() => {
    const pressed = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest?.("input, select, textarea")) return;
      if (!Object.hasOwn(keys, event.key)) return;
      event.preventDefault();
      keys[event.key]();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}
