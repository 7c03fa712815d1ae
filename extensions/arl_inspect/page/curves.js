// Metrics of one run or several over their batches.

import { Answer, useAnswer } from "./common.js";
import { figure } from "./format.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import uPlot from "./vendor/uplot.js";

const CHARTS = [
  ["reward", "Reward of training episodes", "reward/mean"],
  ["held-out", "Held-out reward", "eval/reward"],
  ["staleness", "Staleness, versions", "staleness/mean"],
  ["mismatch", "Largest |proximal − behavior|", "mismatch/max_abs"],
  ["throughput", "Trained tokens a second", "throughput/trained_tokens_per_s"],
  ["overlap", "Sampled while the trainer computed", "overlap"],
  ["loss", "Loss", "loss"],
  ["entropy", "Entropy, nats", "policy/approx_entropy"],
  ["clipped", "Clipped tokens", "policy/clip_fraction"],
  ["batch", "Seconds of a batch", "time/step"],
  ["waited", "Trainer waits for a batch, s", "time/rollout_wait"],
  ["tokens", "Tokens of an episode", "episode/tokens"],
  ["equal", "Groups of equal rewards, share", "reward/equal_groups"],
  ["reused", "Prompt tokens reused so far", "engine/reused_tokens"],
];
const STROKES = [
  ["--line-1", []],
  ["--line-2", [8, 4]],
  ["--line-3", [2, 3]],
  ["--line-4", [10, 3, 2, 3]],
];

export function Curves({ source, about, tick, theme }) {
  const runs = about.split(",").filter(Boolean);
  const state = useAnswer(
    () => Promise.all(runs.map(async (run) => ({ run, ...(await source.metrics(run)) }))),
    [source, about, tick],
  );
  return html`<h1>${runs.length > 1 ? "Curves of several runs" : `Curves of ${runs[0] ?? "no run"}`}</h1>
    <${Answer} state=${state}>${(found) => html`
      ${runs.length > 1 && html`<${Legend} runs=${runs} />`}
      <p class="quiet">Dragging over a chart looks closer, a double click shows all again.</p>
      <div class="charts">
        ${CHARTS.map(([id, title, name]) => html`<${Chart} key=${id} title=${title} name=${name} found=${found} theme=${theme} />`)}
      </div>
      <${Layers} found=${found} theme=${theme} />
      ${runs.map((run) => html`<${Configuration} key=${run} source=${source} run=${run} />`)}`}<//>`;
}

// The norms of trainer.layer_metrics: two charts a layer, drawn only when they are asked for.
function Layers({ found, theme }) {
  const [isOpen, open] = useState(false);
  const names = new Set(found.flatMap(({ rows }) => rows.flatMap(Object.keys)).filter((name) => name.startsWith("layer/")));
  if (!names.size) return null;
  const sorted = [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return html`<details onToggle=${(e) => open(e.target.open)}><summary>Norms of gradients and updates by layer</summary>
    ${isOpen && html`<div class="charts">
      ${sorted.map((name) => html`<${Chart} key=${name} title=${name.slice(6)} name=${name} found=${found} theme=${theme} />`)}
    </div>`}</details>`;
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

function Legend({ runs }) {
  return html`<ul class="legend">
    ${runs.map((run, i) => html`<li><svg width="34" height="8" aria-hidden="true"><line x1="0" x2="34" y1="4" y2="4" class=${`stroke-${i % STROKES.length}`} /></svg> ${run}</li>`)}
  </ul>`;
}

// By run: [batch, value] of what has a value; evaluations stand at the batch they came after.
function points(found, name) {
  return found.map(({ rows, evaluations }) =>
    name.startsWith("eval/")
      ? evaluations.filter((e) => typeof e[name] === "number").map((e) => [e.version, e[name]])
      : rows.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name]]),
  );
}

function Chart({ title, name, found, theme }) {
  const place = useRef(null);
  const near = useRef(null); // the batches that are looked at closely: kept as the run goes on
  const lines = points(found, name);
  const last = lines.map((line) => (line.length ? figure(line[line.length - 1][1]) : "–"));
  const isEmpty = lines.every((line) => line.length === 0);
  useEffect(() => {
    if (isEmpty) return undefined;
    const chart = draw(place.current, lines, found.map(({ run }) => run), name.startsWith("eval/"), near);
    const fit = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: 170 }));
    fit.observe(place.current);
    return () => {
      fit.disconnect();
      chart.destroy();
    };
  }, [JSON.stringify(lines), theme]);
  return html`<figure class="chart">
    <figcaption><span>${title}</span> <span class="newest">${last.map((value, i) => html`<b class=${lines.length > 1 ? `ink-${i % STROKES.length}` : ""} title=${`${found[i].run}: newest`}>${value}</b>`)}</span></figcaption>
    ${isEmpty
      ? html`<p class="quiet">nothing recorded</p>`
      : html`<div ref=${place} role="img" aria-label=${`${title}: newest ${last.join(", ")}`}></div>`}
    <div class="name">${name}</div>
  </figure>`;
}

// On an axis: no more digits than tell the marks apart.
const mark = (value) => {
  const size = Math.abs(value ?? 0);
  return size && (size >= 1e6 || size < 1e-4) ? value.toExponential() : String(value ?? "");
};

function draw(place, lines, runs, hasDots, near) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const steps = [...new Set(lines.flat().map(([step]) => step))].sort((a, b) => a - b);
  const data = lines.map((line) => {
    const by = new Map(line);
    return steps.map((step) => by.get(step) ?? null);
  });
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--faint"), width: 1 }, ticks: { show: false } };
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const before = near.current;
  const chart = new uPlot(
    {
      width: place.clientWidth || 320,
      height: 170,
      scales: { x: { time: false } },
      cursor: { sync: { key: "batches" }, drag: { x: true, y: false } },
      legend: { live: true },
      axes: [{ ...axis, size: 28 }, { ...axis, size: 56, values: (_, values) => values.map(mark) }],
      hooks: {
        setScale: [
          ({ scales: { x } }, key) => {
            if (key === "x") near.current = x.min > first || x.max < last ? { min: x.min, max: x.max } : null;
          },
        ],
      },
      series: [
        { label: "batch" },
        ...runs.map((label, i) => ({
          label,
          stroke: colour(STROKES[i % STROKES.length][0]),
          dash: STROKES[i % STROKES.length][1],
          width: 1.6,
          spanGaps: true,
          points: { show: hasDots || steps.length < 3 },
          value: (_, value) => figure(value),
        })),
      ],
    },
    [steps, ...data],
    place,
  );
  if (before) chart.setScale("x", before);
  return chart;
}
