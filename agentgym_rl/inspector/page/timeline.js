// What happened when: a row for each process, drawn on a canvas; wheel or keys zoom, dragging moves.

import { Answer, useAnswer } from "./common.js";
import { figure } from "./format.js";
import { change } from "./hash.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

const LANE = 22; // pixels of a process
const THIN = 9; // of one of many episodes
const NAMES = 150;
const EPISODES = "episodes";
const FILLS = ["--line-1", "--line-2", "--line-3", "--line-4", "--slice-5", "--slice-6", "--slice-7", "--slice-8"];

export function Timeline({ source, about: run, options, tick }) {
  const isLast = !options.steps;
  const state = useAnswer(() => source.timeline(run, options.steps ?? ""), [source, run, options.steps, isLast ? tick : 0]);
  return html`<h1>Timeline of ${run}</h1>
    ${source.isLive && html`<form class="filters" onSubmit=${(e) => e.preventDefault()}><label>batches
      <input value=${options.steps ?? ""} placeholder="the last 10; 0-4" onChange=${(e) => change({ steps: e.target.value.trim() })} /></label></form>`}
    <${Answer} state=${state}>${(found) =>
      found.tracks.length
        ? html`<${Drawn} found=${found} />`
        : html`<p>Nothing was recorded of these batches yet.</p>`}<//>`;
}

function Drawn({ found }) {
  const canvas = useRef(null);
  const end = Math.max(1e-3, ...found.tracks.flatMap(({ slices }) => slices.map(([, stop]) => stop)));
  const [view, setView] = useState([0, end]);
  const [said, say] = useState("");
  const kinds = kindsOf(found.tracks);
  const lanes = lanesOf(found.tracks);
  const height = lanes[lanes.length - 1].bottom + LANE + 24;
  useEffect(() => setView([0, end]), [found]);
  useEffect(() => {
    const paint = () => draw(canvas.current, found, view, kinds, lanes, height);
    paint();
    const fit = new ResizeObserver(paint);
    fit.observe(canvas.current);
    return () => fit.disconnect();
  }, [found, view, document.documentElement.dataset.theme]);
  const width = () => canvas.current.clientWidth - NAMES;
  const zoom = (factor, around = 0.5) => {
    const span = Math.min((view[1] - view[0]) * factor, end);
    const middle = view[0] + (view[1] - view[0]) * around;
    const from = Math.min(Math.max(middle - span * around, 0), end - span);
    setView([from, from + span]);
  };
  const move = (share) => {
    const span = view[1] - view[0];
    const from = Math.min(Math.max(view[0] + span * share, 0), end - span);
    setView([from, from + span]);
  };
  const keys = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.7), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => setView([0, end]) };
  return html`<p class="bar">
      <button type="button" onClick=${() => zoom(0.6)}>closer</button><button type="button" onClick=${() => zoom(1.7)}>farther</button>
      <button type="button" onClick=${() => setView([0, end])}>all</button>
      <span class="quiet">wheel zooms, dragging moves; keys + − ← → 0</span></p>
    <ul class="legend">${kinds.map((name, i) => html`<li><span class=${`swatch fill-${i % FILLS.length}`}></span>${name}</li>`)}</ul>
    <div class="canvas"><canvas ref=${canvas} tabindex="0" role="img" aria-label=${`${found.tracks.length} processes over ${figure(end)} seconds`}
      onKeyDown=${(e) => keys[e.key] && (e.preventDefault(), keys[e.key]())}
      onWheel=${(e) => { e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max((e.offsetX - NAMES) / width(), 0), 1)); }}
      onPointerMove=${(e) => {
        if (e.buttons === 1) move(-e.movementX / width());
        else say(under(lanes, view, e.offsetX, e.offsetY, width()));
      }} /></div>
    <p class="numbers" role="status">${said || "Point at something to see what it is."}</p>`;
}

// What slices are called, the most time first; episodes are all alike.
function kindsOf(tracks) {
  const spent = new Map();
  for (const { process, slices } of tracks) {
    for (const [start, stop, name] of slices) {
      const kind = process === EPISODES ? EPISODES : name;
      spent.set(kind, (spent.get(kind) ?? 0) + (process === EPISODES ? 0 : stop - start));
    }
  }
  return [...spent.keys()].sort((a, b) => spent.get(b) - spent.get(a));
}

function lanesOf(tracks) {
  let bottom = 0;
  return tracks.map((track) => {
    const top = bottom;
    bottom += track.process === EPISODES ? THIN : LANE;
    return { ...track, top, bottom };
  });
}

function under(lanes, [from, to], x, y, width) {
  const time = from + ((x - NAMES) / width) * (to - from);
  const track = lanes.find(({ top, bottom }) => top <= y && y < bottom);
  const slice = x > NAMES && track?.slices.find(([start, stop]) => start <= time && time <= stop);
  if (!slice) return track ? track.process : "";
  return `${track.process}: ${slice[2]}, ${figure(slice[1] - slice[0])} s, from ${figure(slice[0])} s`;
}

function draw(canvas, found, [from, to], kinds, lanes, height) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const to2d = canvas.getContext("2d");
  to2d.scale(ratio, ratio);
  to2d.font = "12px system-ui, sans-serif";
  const x = (time) => NAMES + ((time - from) / (to - from)) * (width - NAMES);
  lanes.forEach(({ process, slices, top, bottom }, lane) => {
    const edge = bottom - top > THIN ? 3 : 1;
    to2d.fillStyle = colour("--ink");
    if (process !== lanes[lane - 1]?.process) to2d.fillText(process, 4, top + 15, NAMES - 10);
    to2d.save();
    to2d.beginPath();
    to2d.rect(NAMES, top, width - NAMES, bottom - top);
    to2d.clip();
    for (const [start, stop, name] of slices) {
      if (stop < from || start > to) continue;
      const kind = kinds.indexOf(process === EPISODES ? EPISODES : name);
      to2d.fillStyle = colour(FILLS[kind % FILLS.length]);
      to2d.fillRect(x(start), top + edge, Math.max(x(stop) - x(start) - 0.5, 1), bottom - top - 2 * edge);
    }
    to2d.restore();
  });
  const below = lanes[lanes.length - 1].bottom;
  curve(to2d, found.at_once ?? [], x, below, colour, width);
  ruler(to2d, from, to, x, below + LANE + 14, colour);
}

// How many turns are sampled at once.
function curve(to2d, points, x, y, colour, width) {
  const most = Math.max(1, ...points.map(([, turns]) => turns));
  to2d.fillStyle = colour("--ink");
  to2d.fillText(`turns sampled (≤ ${most})`, 4, y + 15, NAMES - 10);
  to2d.save();
  to2d.beginPath();
  to2d.rect(NAMES, y, width - NAMES, LANE);
  to2d.clip();
  to2d.strokeStyle = colour("--line-1");
  to2d.beginPath();
  let last = 0;
  for (const [time, turns] of points) {
    to2d.lineTo(x(time), y + LANE - 2 - (last / most) * (LANE - 5));
    to2d.lineTo(x(time), y + LANE - 2 - (turns / most) * (LANE - 5));
    last = turns;
  }
  to2d.stroke();
  to2d.restore();
}

function ruler(to2d, from, to, x, y, colour) {
  const rough = (to - from) / 8;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  to2d.fillStyle = colour("--quiet");
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
    to2d.fillText(`${Number(time.toPrecision(6))} s`, x(time), y);
  }
}
