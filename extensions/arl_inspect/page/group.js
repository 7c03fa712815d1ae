// The members of a group beside each other: the same task, and what became of it each time.

import { Answer, useAnswer } from "./common.js";
import { Conversation } from "./conversation.js";
import { counted, figure, text } from "./format.js";
import { link, split } from "./hash.js";
import { html, useRef } from "./vendor/preact.js";

export function Group({ source, about, tick }) {
  const [run, id] = split(about);
  const isOver = useRef(false);
  const state = useAnswer(() => source.group(run, id), [source, about, isOver.current ? 0 : tick]);
  // Until it is trained or dropped, more may come to be known of it.
  isOver.current = state.found !== null && (state.found.status === "dropped" || state.found.members.every((it) => it.advantage !== null));
  return html`<h1>Group ${id} <span class="quiet">of ${run}</span></h1>
    <${Answer} state=${state}>${(group) => html`
      <p>${group.cause || group.status}${group.step === null ? "" : `, in batch ${group.step}`} · task ${group.task}</p>
      <details open><summary>Task</summary><pre>${text(group.task_data)}</pre></details>
      ${together(group.members) > 0 && html`<details open><summary>What all of them were told</summary>
        <${Conversation} messages=${group.members[0].messages.slice(0, together(group.members))} /></details>`}
      <div class="members scroll" tabindex="0" role="region" aria-label="members">
        ${[...group.members].sort((a, b) => b.reward - a.reward).map((member) => html`<article key=${member.id}>
          <h2><a href=${link("episode", `${run}/${member.id}`)}>${member.id}</a></h2>
          <p><span class=${`state ${member.outcome}`}>${member.outcome}</span> reward <b>${figure(member.reward)}</b>,
            advantage ${figure(member.advantage)}, ${counted(member.turns, "turn")}, ${counted(member.tokens, "token")}</p>
          ${member.verdict && html`<p>verdict <b>${text(member.verdict)}</b></p>`}
          ${member.error && html`<pre class="error">${text(member.error)}</pre>`}
          <${Conversation} messages=${member.messages.slice(together(group.members))} />
        </article>`)}
      </div>`}<//>`;
}

// How many messages all members begin with; what one said itself stays with it.
function together(members) {
  const [first, ...others] = members.map((member) => member.messages.map((it) => JSON.stringify(it)));
  if (!others.length) return 0;
  let same = 0;
  while (same < first.length && members[0].messages[same].role !== "assistant" && others.every((it) => it[same] === first[same])) same += 1;
  return same;
}
