// A conversation as the agent saw it. All of it is text that somebody else wrote.

import { Body, Text } from "./body.js";
import { text } from "./format.js";
import { Deed, deed } from "./terminal.js";
import { html } from "./vendor/preact.js";

const GLIMPSE = 100; // characters of a call above its result

export function Conversation({ messages }) {
  if (!messages.length) return html`<p class="quiet">no conversation was recorded</p>`;
  const { deeds, answers, folded, called } = read(messages);
  return html`<ol class="conversation">
    ${messages.map((message) => !folded.has(message) && html`<${Message} message=${message} call=${called.get(message)} deeds=${deeds} answers=${answers} />`)}
  </ol>`;
}

function Message({ message, call, deeds, answers }) {
  const role = text(message.role);
  return html`<li class=${`message ${known(role)}`}>
    <div class="role">${call ? html`result of <b>${nameOf(call)}</b> <code>${glimpse(call)}</code>`
      : `${role}${message.tool_call_id ? ` ${text(message.tool_call_id)}` : ""}`}</div>
    ${message.reasoning_content && html`<${Text} className="thought" value=${message.reasoning_content} />`}
    <${Body} message=${message} from=${role} />
    ${calls(message).map((each) => html`<div class="call">
      <span class="role">calls <b>${nameOf(each)}</b></span>
      ${deeds.has(each)
        ? html`<${Deed} deed=${deeds.get(each)} answer=${answers.get(each)} />`
        : html`<${Text} value=${each?.function?.arguments} />`}
    </div>`)}
  </li>`;
}

const known = (role) => (["system", "user", "assistant", "tool"].includes(role) ? role : "other");
const calls = (message) => (Array.isArray(message.tool_calls) ? message.tool_calls : []);

const nameOf = (call) => text(call?.function?.name) || "a tool without a name";

function glimpse(call) {
  const given = text(call.function?.arguments).replace(/\s+/g, " ");
  return given.length > GLIMPSE ? `${given.slice(0, GLIMPSE)}…` : given;
}

// The commands and edits among the calls, and their answers: each is the first message after its
// call that names it, and is shown with the call. Answers of other calls stand by themselves, with
// the call (`called`) in their title.
function read(messages) {
  const [deeds, answers, folded, called, open] = [new Map(), new Map(), new Set(), new Map(), new Map()];
  for (const message of messages) {
    for (const call of calls(message)) {
      const found = deed(call);
      if (found) deeds.set(call, found);
      if (call?.id) open.set(call.id, call);
    }
    const call = message.role === "tool" ? open.get(message.tool_call_id) : undefined;
    if (!call) continue;
    open.delete(message.tool_call_id);
    if (deeds.has(call) && !Array.isArray(message.content)) {
      answers.set(call, message.content);
      folded.add(message);
    } else called.set(message, call);
  }
  return { deeds, answers, folded, called };
}
