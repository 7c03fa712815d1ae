// A small curve of a run's reward; dots are held-out rewards.

import { figure } from "./format.js";
import { html } from "./vendor/preact.js";

const WIDTH = 100;
const HEIGHT = 30;
const EDGE = 3;
const EMPTY = { eval: "not trained" };

export function Sparkline({ run }) {
  const { curve, checks } = run;
  if (!curve.length && !checks.length) return html`<span class="quiet">${EMPTY[run.kind] ?? "no batch yet"}</span>`;
  const values = [...curve, ...checks].map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const last = Math.max(...[...curve, ...checks].map(([step]) => step), 1);
  const x = (step) => EDGE + (step / last) * (WIDTH - 2 * EDGE);
  const y = (value) => (high > low ? HEIGHT - EDGE - ((value - low) / (high - low)) * (HEIGHT - 2 * EDGE) : HEIGHT / 2);
  const line = curve.map(([step, value], i) => `${i ? "L" : "M"} ${x(step).toFixed(2)} ${y(value).toFixed(2)}`).join(" ");
  const dots = checks.map(([step, value]) => `M ${x(step).toFixed(2)} ${y(value).toFixed(2)} h 0`).join(" ");
  const said = curve.length ? `reward from ${figure(curve[0][1])} to ${figure(curve.at(-1)[1])} over ${run.steps} batches` : "held-out reward";
  return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${said}>
    <title>${said}; dots: held-out reward</title>
    <path class="curve" d=${line || "M 0 0"} />
    ${curve.length === 1 && html`<path class="curve point" d=${`${line} h 0`} />`}
    <path class="dots" d=${dots || "M 0 0"} />
  </svg>`;
}
