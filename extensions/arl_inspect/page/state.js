// The state of a run with its progress, and its held-out reward with the interval.

import { figure, unknown } from "./format.js";
import { duration } from "./times.js";
import { html } from "./vendor/preact.js";

const KINDS = { eval: "evaluation", serve: "endpoint" };
const LIVING = ["running", "frozen"];

// What the run plays, with which model, as one line.
export function factsOf(run) {
  const seed = run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`;
  return [run.env, run.agent, run.model, seed].filter(Boolean).join(" · ");
}

export function State({ run }) {
  const share = run.steps_planned ? Math.min(run.steps / run.steps_planned, 1) : 0;
  const kind = KINDS[run.kind];
  return html`<div class="run-state">
    <span class=${`state badge ${run.status}`}>${run.status}</span>
    ${kind && html`<span class="quiet">${kind}</span>`}
    ${run.steps_planned > 0 && html`<span class="progress-text" title="batches trained, of those planned">${run.steps}/${run.steps_planned}</span>`}
    ${run.left_s > 0 && html`<span class="quiet">about ${duration(run.left_s)} left</span>`}
    ${LIVING.includes(run.status) && run.steps_planned > 0 &&
    html`<progress max="1" value=${share} aria-label=${`batches of ${run.id}`}>${Math.round(share * 100)} %</progress>`}
  </div>`;
}

// The first line of the error that ended a run, or of the reason why its folder cannot be read.
export function Failure({ run }) {
  const text = String(run.failure || run.error || "").trim();
  if (!text) return null;
  const [first] = text.split("\n");
  return html`<p class="failure" title=${text}>${first}</p>`;
}

// `range`: the ends of the bar's scale, the same for all runs of a list.
export function HeldOut({ run, range = null }) {
  const found = run.held_out;
  if (!found) return html`<span class="quiet">${unknown}</span>`;
  const { reward, low, high, version } = found;
  const hasInterval = low !== null && high !== null;
  const before = run.held_out_before;
  return html`<div class="held-out" title=${`held-out reward${version === null ? "" : ` after ${version} batches`}${hasInterval ? ", with its 95 % interval" : ""}`}>
    <span><b>${figure(reward)}</b>${hasInterval && html` <span class="quiet">[${figure(low)}, ${figure(high)}]</span>`}</span>
    ${range && hasInterval && html`<${Bar} reward=${reward} low=${low} high=${high} range=${range} />`}
    ${version > 0 && before !== null && before !== undefined && html`<span class="quiet">before: ${figure(before)}</span>`}
  </div>`;
}

function Bar({ reward, low, high, range: [from, to] }) {
  const at = (value) => (100 * (value - from)) / (to - from || 1);
  return html`<svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <line class="scale" x1="0" x2="100" y1="5" y2="5" />
    <line class="span" x1=${at(low)} x2=${at(high)} y1="5" y2="5" />
    <path class="point" d=${`M ${at(reward)} 5 h 0`} />
  </svg>`;
}

// The scale on which the intervals of several runs can be compared.
export function rangeOf(runs) {
  const known = runs.map((run) => run.held_out).filter((it) => it && it.low !== null && it.high !== null);
  if (!known.length) return null;
  return [Math.min(...known.map((it) => it.low)), Math.max(...known.map((it) => it.high))];
}
