// What happened when: a row for each process, drawn on a canvas; Ctrl and wheel, or keys, zoom.

import { Answer, useAnswer } from "./common.js";
import { figure } from "./format.js";
import { change, link } from "./hash.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

const LANE = 22; // pixels of a process
const THIN = 9; // of one of many episodes
const RULER = 20;
const EPISODES = "episodes";
const TURNS = "turns sampled";
const BATCHES = "batches";
// A phase has the same colour in every run.
const KINDS = ["forward_backward", "proximal", "rollout_wait", "weight_sync", "optimizer", "checkpoint", "pause", EPISODES, "reference", "values", "critic", "onload"];
const FILLS = ["--line-1", "--line-2", "--line-3", "--line-4", "--slice-5", "--slice-6", "--slice-7", "--slice-8", "--slice-9", "--slice-10", "--slice-11", "--slice-12"];
const fillOf = (kind) => (KINDS.includes(kind) ? KINDS.indexOf(kind) : FILLS.length - 1);
const namesIn = (width) => Math.min(150, width / 3); // what the processes' names take

export function Timeline({ source, about: run, options, tick, theme }) {
  const isLast = !options.steps;
  const state = useAnswer(() => source.timeline(run, options.steps ?? ""), [source, run, options.steps, isLast ? tick : 0]);
  return html`<h1>Timeline of ${run}</h1>
    ${source.isLive && html`<form class="filters" onSubmit=${(e) => e.preventDefault()}><label>batches
      <input value=${options.steps ?? ""} placeholder="the last 10; 0-4" onChange=${(e) => change({ steps: e.target.value.trim() })} /></label></form>`}
    <${Answer} state=${state}>${(found) =>
      found.tracks.length
        ? html`<${Drawn} found=${found} run=${run} theme=${theme} />`
        : html`<p>Nothing was recorded of these batches yet.</p>`}<//>`;
}

function Drawn({ found, run, theme }) {
  const canvas = useRef(null);
  const end = Math.max(1e-3, ...found.tracks.flatMap(({ slices }) => slices.map(([, stop]) => stop)));
  const [view, setView] = useState([0, end]);
  const [said, say] = useState("");
  const kinds = kindsOf(found.tracks);
  const lanes = lanesOf(found);
  const height = lanes[lanes.length - 1].bottom + 4;
  const dragged = useRef(0); // pixels since the button went down
  useEffect(() => setView([0, end]), [found]);
  useEffect(() => {
    const paint = () => draw(canvas.current, view, lanes, height);
    paint();
    const fit = new ResizeObserver(paint);
    fit.observe(canvas.current);
    return () => fit.disconnect();
  }, [found, view, theme]);
  const names = () => namesIn(canvas.current.clientWidth);
  const width = () => canvas.current.clientWidth - names();
  const at = (e) => under(lanes, view, e.offsetX - names(), e.offsetY, width());
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
      <span class="quiet">Ctrl and wheel zoom, dragging moves, a click opens an episode; keys + − ← → 0</span></p>
    <ul class="legend">${kinds.map((name) => html`<li><span class=${`swatch fill-${fillOf(name)}`}></span>${name}</li>`)}</ul>
    <div class="canvas"><canvas ref=${canvas} tabindex="0" role="img" aria-label=${`${found.tracks.length} processes over ${figure(end)} seconds`}
      onKeyDown=${(e) => keys[e.key] && (e.preventDefault(), keys[e.key]())}
      onWheel=${(e) => {
        if (!e.ctrlKey && !e.metaKey) return; // the page scrolls
        e.preventDefault();
        zoom(e.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max((e.offsetX - names()) / width(), 0), 1));
      }}
      onPointerDown=${() => (dragged.current = 0)}
      onPointerMove=${(e) => {
        if (e.buttons === 1) {
          dragged.current += Math.abs(e.movementX);
          move(-e.movementX / width());
        } else {
          const found = at(e);
          canvas.current.style.cursor = found.episode ? "pointer" : "";
          say(found.said);
        }
      }}
      onClick=${(e) => {
        const { episode } = at(e);
        if (episode && dragged.current < 4) location.hash = link("episode", `${run}/${episode}`);
      }} /></div>
    <p class=${said ? "numbers" : "numbers quiet"} role="status">${said || "Point at something to see what it is."}</p>`;
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

// From above: batches, trainers and engines, how many turns were sampled at once, and episodes, which
// may be many.
function lanesOf({ tracks, batches, at_once: points }) {
  let bottom = RULER;
  const lane = (track) => {
    const top = bottom;
    bottom += track.process === EPISODES ? THIN : LANE;
    return { ...track, top, bottom };
  };
  const found = batches?.length ? [lane({ process: BATCHES, slices: batches })] : [];
  found.push(...tracks.filter(({ process }) => process !== EPISODES).map(lane));
  if (points?.length) found.push(lane({ process: TURNS, slices: [], points }));
  found.push(...tracks.filter(({ process }) => process === EPISODES).map(lane));
  return found;
}

// What is at a place: in words, and the episode it is of.
function under(lanes, [from, to], x, y, width) {
  const time = from + (x / width) * (to - from);
  const near = (2 / width) * (to - from); // what is short is hard to meet
  const track = lanes.find(({ top, bottom }) => top <= y && y < bottom);
  if (!track || x < 0) return { said: track ? track.process : "" };
  if (track.points) return { said: `${turnsAt(track.points, time)} turns sampled at ${figure(time)} s` };
  const slice = track.slices.find(([start, stop]) => start <= time && time <= stop)
    ?? track.slices.find(([start, stop]) => start - near <= time && time <= stop + near);
  if (!slice) return { said: track.process };
  const [start, stop, name] = slice;
  const what = track.process === BATCHES ? `batch ${name}` : `${track.process}: ${name}`;
  const episode = track.process === EPISODES ? name.replace(/ turn \d+$/, "") : "";
  return { said: `${what}, ${figure(stop - start)} s, from ${figure(start)} s`, episode };
}

function turnsAt(points, time) {
  let turns = 0;
  for (const [since, many] of points) {
    if (since > time) break;
    turns = many;
  }
  return turns;
}

function draw(canvas, [from, to], lanes, height) {
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
  const names = namesIn(width);
  const x = (time) => names + ((time - from) / (to - from)) * (width - names);
  ruler(to2d, from, to, x, width, colour);
  lanes.forEach((track, lane) => {
    const { process, slices, points, top, bottom } = track;
    to2d.fillStyle = colour("--ink");
    const said = points ? `${process} (≤ ${mostOf(points)})` : process;
    if (process !== lanes[lane - 1]?.process) to2d.fillText(said, 4, top + 15, names - 10);
    to2d.save();
    to2d.beginPath();
    to2d.rect(names, top, width - names, bottom - top);
    to2d.clip();
    if (points) curve(to2d, points, x, top, colour);
    const edge = bottom - top > THIN ? 3 : 1;
    for (const [start, stop, name] of slices) {
      if (stop < from || start > to) continue;
      const box = [x(start), top + edge, Math.max(x(stop) - x(start) - 0.5, 1), bottom - top - 2 * edge];
      if (process === BATCHES) {
        batch(to2d, name, box, colour);
        continue;
      }
      to2d.fillStyle = colour(FILLS[fillOf(process === EPISODES ? EPISODES : name)]);
      to2d.fillRect(...box);
    }
    to2d.restore();
  });
}

function batch(to2d, name, [left, top, width, height], colour) {
  to2d.fillStyle = colour("--faint");
  to2d.fillRect(left, top, width, height);
  const size = to2d.measureText(name).width;
  to2d.fillStyle = colour("--ink");
  if (size + 2 < width) to2d.fillText(name, left + (width - size) / 2, top + height - 4);
}

const mostOf = (points) => Math.max(1, ...points.map(([, turns]) => turns));

// How many turns are sampled at once.
function curve(to2d, points, x, top, colour) {
  const most = mostOf(points);
  to2d.strokeStyle = colour("--line-1");
  to2d.beginPath();
  let last = 0;
  for (const [time, turns] of points) {
    to2d.lineTo(x(time), top + LANE - 2 - (last / most) * (LANE - 5));
    to2d.lineTo(x(time), top + LANE - 2 - (turns / most) * (LANE - 5));
    last = turns;
  }
  to2d.stroke();
}

function ruler(to2d, from, to, x, width, colour) {
  const rough = (to - from) / Math.max(2, width / 140);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  to2d.fillStyle = colour("--quiet");
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
    const said = `${Number(time.toPrecision(6))} s`;
    if (x(time) + to2d.measureText(said).width < width) to2d.fillText(said, x(time), 13);
  }
}
