// The tokens of a row, coloured; the numbers of the one that is pointed at.

import { colouring, ink, KINDS } from "./colours.js";
import { counted, figure } from "./format.js";
import { change } from "./hash.js";
import { html, useMemo, useState } from "./vendor/preact.js";

const MOST = 6000; // tokens drawn at once
const GIVEN = 24; // given tokens in a row, beyond which they are folded
const AROUND = 6; // given tokens that stay at the end of a fold

export function Tokens({ row, kind, theme, isWhole }) {
  const [at, point] = useState(null);
  const [from, setFrom] = useState(() => start(row, isWhole));
  const [opened, openRun] = useState(() => new Set());
  const scale = useMemo(() => colouring(kind, row, theme), [kind, row, theme]);
  const number = (event) => {
    const found = event.target.closest?.("[data-i]");
    return found ? Number(found.dataset.i) : null;
  };
  const to = Math.min(from + MOST, row.tokens.length);
  const pieces = useMemo(() => {
    const found = [];
    for (let i = from; i < to; ) {
      const end = isWhole || opened.has(i) ? i : foldEnd(row, i, to);
      if (end > i) {
        const first = i;
        found.push(html`<button type="button" class="given-run" onClick=${() => openRun(new Set(opened).add(first))}>${counted(end - i, "token")} given</button> `);
        i = end;
        continue;
      }
      const stop = opened.has(i) ? runEnd(row, i, to) : i + 1;
      for (; i < stop; i += 1) found.push(piece(row, scale, i));
    }
    return found;
  }, [row, scale, from, isWhole, opened]);
  return html`<div class="tokens">
    <div class="bar">
      <label>coloured by
        <select value=${kind} onChange=${(e) => change({ colour: e.target.value })}>
          ${Object.entries(KINDS).map(([value, said]) => html`<option value=${value}>${said}</option>`)}
        </select></label>
      <ul class="legend">${scale.legend.map(([colour, said]) => html`<li><span class="swatch" style=${{ background: colour }}></span>${said}</li>`)}
        ${row.version.some((version, i) => version !== null && !row.trains[i]) && html`<li><span class="swatch untrained"></span>underlined: sampled, and not trained</li>`}</ul>
      <label><input type="checkbox" checked=${isWhole} onChange=${(e) => change({ all: e.target.checked ? "1" : "" })} /> given tokens too</label>
    </div>
    ${scale.missing && html`<p class="quiet">${scale.missing}</p>`}
    ${row.tokens.length > MOST && html`<p class="bar">tokens ${from}–${to - 1} of ${row.tokens.length}
      <button type="button" disabled=${from === 0} onClick=${() => setFrom(Math.max(from - MOST, 0))}>earlier</button>
      <button type="button" disabled=${to === row.tokens.length} onClick=${() => setFrom(to)}>later</button></p>`}
    <pre class="row" tabindex="0" role="group" aria-label="tokens" onMouseOver=${(e) => point(number(e) ?? at)} onClick=${(e) => point(number(e))}
      onKeyDown=${(e) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
        if (!move) return;
        e.preventDefault();
        point(Math.min(Math.max((at ?? from - move) + move, from), to - 1));
      }}>${pieces}</pre>
    <${Numbers} row=${row} at=${at} />
  </div>`;
}

// The end of the given tokens from `i` on, and of those of them that are folded.
function runEnd(row, i, to) {
  let end = i;
  while (end < to && row.version[end] === null) end += 1;
  return end;
}

function foldEnd(row, i, to) {
  if (row.version[i] !== null || (i > 0 && row.version[i - 1] === null && i % MOST)) return i;
  const end = runEnd(row, i, to);
  return end - i > GIVEN ? end - AROUND : i;
}

// The first token that is drawn: a prompt longer than all that is drawn at once is left out.
function start(row, isWhole) {
  const first = row.version.findIndex((version) => version !== null);
  return isWhole || first < MOST ? 0 : first - AROUND;
}

function piece(row, scale, i) {
  const colour = scale.of(i);
  const names = [row.version[i] === null ? "given" : "sampled"];
  if (row.version[i] !== null && !row.trains[i]) names.push("untrained");
  const style = colour ? { background: colour, color: ink(colour) } : undefined;
  return html`<span data-i=${i} class=${names.join(" ")} style=${style}>${visible(row.text[i])}</span>`;
}

// A token that shows nothing can be pointed at all the same.
const visible = (text) => (text === "" ? "∅" : text.replace(/\n/g, "↵\n"));

function Numbers({ row, at }) {
  if (at === null || at >= row.tokens.length) {
    return html`<p class="numbers quiet">Point at a token, or move with the arrow keys, to see its numbers.</p>`;
  }
  const gap = row.proximal?.[at] === null || !row.proximal || row.behavior[at] === null
    ? null
    : Math.abs(row.proximal[at] - row.behavior[at]);
  const shown = [
    ["token", `${at}: ${JSON.stringify(row.text[at])} (${row.tokens[at]})`],
    ["turn", row.turn[at] < 0 ? "not sampled" : row.turn[at]],
    ["version", figure(row.version[at])],
    ["confirmed at the request", figure(row.admitted[at])],
    ["behavior log-prob", figure(row.behavior[at], 4)],
    ["proximal log-prob", figure(row.proximal?.[at], 4)],
    ["|proximal − behavior|", figure(gap, 3)],
    ["advantage", figure(row.advantage?.[at], 3)],
    ["temperature", figure(row.version[at] === null ? null : row.temperature[at])],
    ["trains", row.trains[at] ? "yes" : "no"],
  ];
  return html`<dl class="numbers">${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
