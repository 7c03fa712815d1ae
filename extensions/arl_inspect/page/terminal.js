// Commands as a terminal shows them, and edits as differences of lines. Coding agents name the
// arguments of their tools in many ways; a call that fits none of these is shown as it is.

import { text } from "./format.js";
import { html } from "./vendor/preact.js";

const COMMAND = ["command", "cmd"];
const OLD = ["old", "old_string", "old_str", "old_text", "oldText"];
const NEW = ["new", "new_string", "new_str", "new_text", "newText"];
const PATH = ["path", "file_path", "filePath", "filename"];
const PATCH = /(^|apply_patch )\*\*\* Begin Patch|^diff --git |^--- .*\n\+\+\+ /m;

// What a call does: {command}, {path, lines} or null.
export function deed(call) {
  const given = parsed(call?.function?.arguments);
  if (typeof given === "string") return PATCH.test(given) ? { path: "", lines: patch(given) } : null;
  const [old, fresh, path] = [first(given, OLD), first(given, NEW), first(given, PATH)];
  if (path !== null && fresh !== null) return { path, lines: [...each("-", old ?? ""), ...each("+", fresh)] };
  const whole = path === null ? null : first(given, ["content", "file_text"]);
  if (whole !== null) return { path, lines: each("+", whole) };
  const command = first(given, COMMAND);
  const said = command ?? first(given, ["input", "patch"]);
  if (said !== null && PATCH.test(said)) return { path: "", lines: patch(said) };
  return command ? { command } : null;
}

export function Deed({ deed, answer }) {
  const output = answer === undefined ? null : html`<pre class="output">${text(answer)}</pre>`;
  if (deed.command) {
    return html`<div class="terminal"><pre><span class="prompt">$ </span>${deed.command}</pre>${output}</div>`;
  }
  return html`<div class="diff"><div class="role">${deed.path}</div>
    <pre>${deed.lines.map(([sign, line]) => html`<div class=${NAMES[sign] ?? "same"}>${sign}${line}</div>`)}</pre>${output}</div>`;
}

const NAMES = { "-": "removed", "+": "added" };

function parsed(given) {
  if (typeof given !== "string") return given ?? {};
  try {
    return JSON.parse(given) ?? {};
  } catch {
    return given;
  }
}

// The first of these arguments that is a text, or a list of words.
function first(given, names) {
  if (typeof given !== "object") return null;
  for (const name of names) {
    const value = Object.hasOwn(given, name) ? given[name] : null;
    if (typeof value === "string") return value;
    if (Array.isArray(value) && value.length) return value.map(text).join(" ");
  }
  return null;
}

const each = (sign, lines) => (lines === "" ? [] : lines.replace(/\n$/, "").split("\n").map((line) => [sign, line]));

const patch = (lines) => lines.replace(/\n$/, "").split("\n").map((line) => {
  const sign = /^(\+\+\+|---)/.test(line) ? "" : line[0];
  return sign in NAMES ? [sign, line.slice(1)] : ["", line];
});
