// The members of a group beside each other: the same task, and what became of it each time.

import { Answer, useAnswer } from "./common.js";
import { Conversation } from "./conversation.js";
import { figure, text } from "./format.js";
import { link, split } from "./hash.js";
import { html } from "./vendor/preact.js";

export function Group({ source, about }) {
  const [run, id] = split(about);
  const state = useAnswer(() => source.group(run, id), [source, about]);
  return html`<h1>Group ${id}</h1>
    <${Answer} state=${state}>${(group) => html`
      <p>${group.cause || group.status}${group.step === null ? "" : `, in batch ${group.step}`} · task ${group.task}</p>
      <details open><summary>Task</summary><pre>${text(group.task_data)}</pre></details>
      <div class="members scroll" tabindex="0" role="region" aria-label="members">
        ${[...group.members].sort((a, b) => b.reward - a.reward).map((member) => html`<article key=${member.id}>
          <h2><a href=${link("episode", `${run}/${member.id}`)}>${member.id}</a></h2>
          <p><span class=${`state ${member.outcome}`}>${member.outcome}</span> reward <b>${figure(member.reward)}</b>,
            advantage ${figure(member.advantage)}, ${member.turns} turns, ${member.tokens} tokens</p>
          ${member.error && html`<pre class="error">${text(member.error)}</pre>`}
          <${Conversation} messages=${member.messages} />
        </article>`)}
      </div>`}<//>`;
}
