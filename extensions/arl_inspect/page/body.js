// The content of a message: JSON laid out, pictures, and long texts folded. All of it was written by
// somebody else, and is shown as text; pictures are only those that the message itself holds.

import { count, text } from "./format.js";
import { html, useState } from "./vendor/preact.js";

const LONG = 2400; // characters of a text that is not folded; half of them are shown of one that is
const LINES = 40;
const PICTURE = /^data:image\/(png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=\s]*$/;
const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

// A message as its environment's view shows it, and how it was recorded; or only the latter.
export function Body({ message, from }) {
  const recorded = html`<${Recorded} content=${message.content} from=${from} />`;
  if (!Array.isArray(message.shown)) return recorded;
  return html`${message.shown.map(({ table, picture: source, text: said }) => {
      if (table) return html`<div class="scroll" tabindex="0" role="group" aria-label="table"><table class="shown">${table.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</table></div>`;
      if (source) return safe(source) && html`<img class="picture" src=${source} alt=${`view of a message from ${from}`} />`;
      return html`<${Text} value=${said} />`;
    })}
    <details class="recorded"><summary>as recorded</summary>${recorded}</details>`;
}

function Recorded({ content, from }) {
  if (content === null || content === undefined || content === "") return null;
  if (!Array.isArray(content)) return html`<${Text} value=${content} />`;
  return content.map((part) => {
    const source = picture(part);
    if (source) return html`<img class="picture" src=${source} alt=${`picture from ${from}`} />`;
    return html`<${Text} value=${part?.text ?? part} />`;
  });
}

// A text; if it is JSON it is laid out, and if it is long most of it is folded.
export function Text({ value, className = "", most = LONG, lines = LINES }) {
  const [isOpen, open] = useState(false);
  const whole = laidOut(text(value));
  const head = headOf(whole, most, lines);
  if (head === whole) return html`<pre class=${className}>${whole}</pre>`;
  return html`<pre class=${className}>${isOpen ? whole : head}</pre>
    <button type="button" class="fold" aria-expanded=${isOpen ? "true" : "false"} onClick=${() => open(!isOpen)}>${
      isOpen ? "less" : `all ${count(whole.length)} characters`}</button>`;
}

function headOf(whole, most, lines) {
  const first = whole.split("\n", lines + 1);
  if (whole.length <= most && first.length <= lines) return whole;
  return first.slice(0, lines).join("\n").slice(0, most / 2);
}

// JSON objects and lists with a line for each value; other texts as they are. The text of numbers
// and names stays as it was written, which JSON.parse would change.
export function laidOut(whole) {
  if (!/^\s*[{[]/.test(whole)) return whole;
  try {
    JSON.parse(whole);
  } catch {
    return whole;
  }
  let [made, depth] = ["", 0];
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = whole.match(TOKEN);
  tokens.forEach((token, i) => {
    const isEmpty = "}]".includes(token) && "{[".includes(tokens[i - 1]);
    if ("{[".includes(token)) {
      depth += 1;
      made += token + ("}]".includes(tokens[i + 1]) ? "" : line());
    } else if ("}]".includes(token)) {
      depth -= 1;
      made += (isEmpty ? "" : line()) + token;
    } else made += token === "," ? token + line() : token === ":" ? ": " : token;
  });
  return made.length <= 100 && !made.includes("{\n  ", 2) && tokens.length < 12 ? made.replace(/\n\s*/g, " ") : made;
}

// The picture in a part of a message, in the forms of the OpenAI and Anthropic APIs.
function picture(part) {
  const { type, image_url: url, source } = part ?? {};
  if (source?.type === "base64") return safe(`data:${source.media_type};base64,${source.data}`);
  return type === "image_url" || type === "input_image" ? safe(url?.url ?? url) : "";
}

const safe = (source) => (typeof source === "string" && PICTURE.test(source) ? source : "");
