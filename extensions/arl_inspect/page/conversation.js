// A conversation as the agent saw it. All of it is text that somebody else wrote.

import { text } from "./format.js";
import { Deed, deed } from "./terminal.js";
import { html } from "./vendor/preact.js";

export function Conversation({ messages }) {
  if (!messages.length) return html`<p class="quiet">no conversation was recorded</p>`;
  const { deeds, answers, folded } = read(messages);
  return html`<ol class="conversation">
    ${messages.map((message) => !folded.has(message) && html`<li class=${`message ${known(message.role)}`}>
      <div class="role">${text(message.role)}${message.tool_call_id ? ` ${text(message.tool_call_id)}` : ""}</div>
      ${message.reasoning_content && html`<pre class="thought">${text(message.reasoning_content)}</pre>`}
      ${body(message.content)}
      ${calls(message).map((call) => html`<div class="call">
        <span class="role">calls ${text(call?.function?.name)}</span>
        ${deeds.has(call)
          ? html`<${Deed} deed=${deeds.get(call)} answer=${answers.get(call)} />`
          : html`<pre>${text(call?.function?.arguments)}</pre>`}
      </div>`)}
    </li>`)}
  </ol>`;
}

const known = (role) => (["system", "user", "assistant", "tool"].includes(role) ? role : "other");
const calls = (message) => (Array.isArray(message.tool_calls) ? message.tool_calls : []);

// The commands and edits among the calls, and their answers: each is the first message after its
// call that names it, and is shown with the call.
function read(messages) {
  const [deeds, answers, folded, open] = [new Map(), new Map(), new Set(), new Map()];
  for (const message of messages) {
    for (const call of calls(message)) {
      const found = deed(call);
      if (!found) continue;
      deeds.set(call, found);
      if (call?.id) open.set(call.id, call);
    }
    const call = message.role === "tool" ? open.get(message.tool_call_id) : undefined;
    if (call && !Array.isArray(message.content)) {
      open.delete(message.tool_call_id);
      answers.set(call, message.content);
      folded.add(message);
    }
  }
  return { deeds, answers, folded };
}

function body(content) {
  if (Array.isArray(content)) return content.map((part) => html`<pre>${text(part?.text ?? part)}</pre>`);
  return content ? html`<pre>${text(content)}</pre>` : null;
}
