// One chart: a metric of one run or several over their batches.

import { figure, unknown } from "./format.js";
import { isHeldOut, smoothed, titleOf } from "./metrics.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import uPlot from "./vendor/uplot.js";

const HEIGHT = 180;
// Of run number i: its colour and its dashes; both differ, so that either tells the runs apart.
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--slice-8", "--slice-9", "--slice-10", "--slice-11", "--slice-12", "--slice-5"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2]];
const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 9 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b);

export const colourOf = (i) => COLOURS[i % COLOURS.length];
export const dashesOf = (i) => DASHES[i % DASHES.length];

export function Line({ i }) {
  return html`<svg class="line-sample" width="34" height="8" aria-hidden="true">
    <line x1="0" x2="34" y1="4" y2="4" style=${`stroke: var(${colourOf(i)}); stroke-dasharray: ${dashesOf(i).join(" ") || "none"}`} />
  </svg>`;
}

// By run: [batch, value, low, high] of what has a value; an evaluation stands at the number of
// batches that its weights were trained for.
function pointsOf({ rows, evaluations }, name) {
  const [all, at] = isHeldOut(name) ? [evaluations, "version"] : [rows, "step"];
  const number = (value) => (typeof value === "number" ? value : null);
  return all
    .filter((it) => typeof it[name] === "number" && typeof it[at] === "number")
    .map((it) => [it[at], it[name], number(it[`${name}_low`]), number(it[`${name}_high`])]);
}

// `lines`: [{run, i, rows, evaluations}], where i is the run's number in the legend.
export function Chart({ name, lines, theme, smooth }) {
  const place = useRef(null);
  const drawn = useRef(null);
  const near = useRef(null); // the batches that are looked at closely: kept as the run goes on
  const [at, point] = useState(null);
  const points = lines.map((line) => pointsOf(line, name));
  const width = isHeldOut(name) ? 1 : smooth;
  const isEmpty = points.every((line) => line.length === 0);
  useEffect(() => {
    if (isEmpty) return undefined;
    const chart = draw(place.current, { points, numbers: lines.map(({ i }) => i), hasDots: isHeldOut(name), width, near, point });
    drawn.current = chart;
    const fit = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    fit.observe(place.current);
    return () => {
      fit.disconnect();
      chart.destroy();
      drawn.current = null;
      point(null);
    };
  }, [JSON.stringify([points, lines.map(({ i }) => i), width]), theme]);
  const told = points.map((line) => (at === null ? line.at(-1) : line.find(([step]) => step === at))?.[1]);
  const keys = (event) => {
    const steps = drawn.current?.data[0];
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!steps?.length || !way) return;
    event.preventDefault();
    const now = at === null ? (way > 0 ? -1 : steps.length) : steps.indexOf(at);
    const to = Math.min(Math.max(now + way, 0), steps.length - 1);
    drawn.current.setCursor({ left: drawn.current.valToPos(steps[to], "x"), top: 10 });
  };
  return html`<figure class="chart">
    <figcaption class=${lines.length > 1 ? "many" : ""}><span class="title" title=${name}>${titleOf(name)}</span>
      <span class="newest"><span class="at quiet">${at === null ? "newest" : isHeldOut(name) ? `after ${at}` : `batch ${at}`}</span>
        ${told.map((value, k) => html`<b style=${lines.length > 1 ? `color: var(${colourOf(lines[k].i)})` : ""} title=${lines[k].run}>${value === undefined ? unknown : figure(value)}</b>`)}</span></figcaption>
    ${isEmpty
      ? html`<p class="quiet">nothing recorded</p>`
      : html`<div class="plot" ref=${place} tabindex="0" role="img" onKeyDown=${keys} onBlur=${() => drawn.current?.setCursor({ left: -10, top: -10 })}
          aria-label=${`${titleOf(name)}: ${told.map((value, k) => `${lines[k].run} ${value === undefined ? unknown : figure(value)}`).join(", ")}`}></div>`}
    ${titleOf(name) !== name && html`<div class="name">${name}</div>`}
  </figure>`;
}

// On an axis: no more digits than tell the marks apart.
const mark = (value) => {
  const size = Math.abs(value ?? 0);
  return size && (size >= 1e6 || size < 1e-4) ? value.toExponential() : String(value ?? "");
};

function draw(place, { points, numbers, hasDots, width, near, point }) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const steps = [...new Set(points.flat().map(([step]) => step))].sort((a, b) => a - b);
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const { series, bands, columns } = seriesOf({ points, numbers, hasDots, width, steps, colour });
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--faint"), width: 1 }, ticks: { show: false } };
  const before = near.current;
  const chart = new uPlot(
    {
      width: place.clientWidth || 320,
      height: HEIGHT,
      padding: [8, 12, 0, 0],
      scales: { x: { time: false, ...(first === last ? { range: [first - 1, last + 1] } : {}) } },
      cursor: { y: false, sync: { key: "batches" }, drag: { x: true, y: false }, points: { size: 7 } },
      legend: { show: false },
      axes: [{ ...axis, size: 28, incrs: WHOLE }, { ...axis, size: 56, values: (_, values) => values.map(mark) }],
      bands,
      hooks: {
        setScale: [
          ({ scales: { x } }, key) => {
            if (key === "x") near.current = first !== last && (x.min > first || x.max < last) ? { min: x.min, max: x.max } : null;
          },
        ],
        setCursor: [({ cursor: { idx, left } }) => point(left >= 0 && idx !== null && idx !== undefined ? steps[idx] : null)],
        draw: [(plot) => whiskers(plot, points, numbers, colour)],
      },
      series,
    },
    [steps, ...columns],
    place,
  );
  if (before) chart.setScale("x", before);
  return chart;
}

// For each run: the line; under a smoothed one its values, faint; around held-out rewards their interval.
function seriesOf({ points, numbers, hasDots, width, steps, colour }) {
  const series = [{ label: "batch" }];
  const [columns, bands] = [[], []];
  const add = (values, options) => {
    columns.push(values);
    series.push({ spanGaps: true, points: { show: false }, ...options });
    return series.length - 1;
  };
  points.forEach((line, k) => {
    const by = new Map(line.map((it) => [it[0], it]));
    const column = (at) => steps.map((step) => by.get(step)?.[at] ?? null);
    const stroke = colour(colourOf(numbers[k]));
    if (line.some(([, , low, high]) => low !== null && high !== null)) {
      const high = add(column(3), { stroke: "transparent" });
      const low = add(column(2), { stroke: "transparent" });
      bands.push({ series: [high, low], fill: `${stroke}22` });
    }
    const values = column(1);
    if (width > 1) add(values, { stroke: `${stroke}55`, width: 1 });
    const dots = { show: hasDots || line.length < 3, size: 6 };
    add(width > 1 ? smoothed(values, width) : values, { stroke, dash: dashesOf(numbers[k]), width: 1.7, points: dots });
  });
  return { series, bands, columns };
}

// The interval at each evaluation, which a band alone does not show where there is only one.
function whiskers(plot, points, numbers, colour) {
  const { ctx: to, bbox } = plot;
  to.save();
  to.beginPath();
  to.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  to.clip();
  to.lineWidth = 1.2 * devicePixelRatio;
  points.forEach((line, k) => {
    to.strokeStyle = colour(colourOf(numbers[k]));
    for (const [step, , low, high] of line) {
      if (low === null || high === null) continue;
      const [x, from, until] = [plot.valToPos(step, "x", true), plot.valToPos(low, "y", true), plot.valToPos(high, "y", true)];
      const cap = 3 * devicePixelRatio;
      to.beginPath();
      to.moveTo(x, from);
      to.lineTo(x, until);
      for (const y of [from, until]) {
        to.moveTo(x - cap, y);
        to.lineTo(x + cap, y);
      }
      to.stroke();
    }
  });
  to.restore();
}
