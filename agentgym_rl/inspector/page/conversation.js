// A conversation as the agent saw it. All of it is text that somebody else wrote.

import { text } from "./format.js";
import { html } from "./vendor/preact.js";

export function Conversation({ messages }) {
  if (!messages.length) return html`<p class="quiet">no conversation was recorded</p>`;
  return html`<ol class="conversation">
    ${messages.map((message) => html`<li class=${`message ${known(message.role)}`}>
      <div class="role">${text(message.role)}${message.tool_call_id ? ` ${text(message.tool_call_id)}` : ""}</div>
      ${message.reasoning_content && html`<pre class="thought">${text(message.reasoning_content)}</pre>`}
      ${body(message.content)}
      ${Array.isArray(message.tool_calls) && message.tool_calls.map((call) => html`<div class="call">
        <span class="role">calls ${text(call?.function?.name)}</span><pre>${text(call?.function?.arguments)}</pre>
      </div>`)}
    </li>`)}
  </ol>`;
}

const known = (role) => (["system", "user", "assistant", "tool"].includes(role) ? role : "other");

function body(content) {
  if (Array.isArray(content)) return content.map((part) => html`<pre>${text(part?.text ?? part)}</pre>`);
  return content ? html`<pre>${text(content)}</pre>` : null;
}
