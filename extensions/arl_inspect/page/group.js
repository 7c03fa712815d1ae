// The members of a group: the same task, and what became of it each time. The best and the worst
// stand beside each other; any two can.

import { Text } from "./body.js";
import { Parts, Verdict } from "./columns.js";
import { Answer, useAnswer } from "./common.js";
import { Conversation } from "./conversation.js";
import { count, counted, figure, text } from "./format.js";
import { Game } from "./game.js";
import { change, link, split } from "./hash.js";
import { packed, toEpisode } from "./list.js";
import { html, useRef } from "./vendor/preact.js";

export function Group({ source, about, options, tick }) {
  const [run, id] = split(about);
  const isOver = useRef(false);
  const state = useAnswer(() => source.group(run, id), [source, about, isOver.current ? 0 : tick]);
  // Until it is trained or dropped, more may come to be known of it.
  isOver.current = state.found !== null && (state.found.status === "dropped" || state.found.members.every((it) => it.advantage !== null));
  return html`<nav class="neighbours" aria-label="list"><a class="button" href=${link("episodes", run, { group: id })}>its episodes in the table</a></nav>
    <h1>Group ${id} <span class="quiet">of ${run}</span></h1>
    <${Answer} state=${state}>${(group) => html`<${Found} run=${run} id=${id} group=${group} options=${options} />`}<//>`;
}

function Found({ run, id, group, options }) {
  const first = (member) => member.seats[0]?.reward ?? 0; // in self-play the rewards may add up to 0
  const sorted = [...group.members].sort((a, b) => b.reward - a.reward || first(b) - first(a));
  const of = (name, otherwise) => sorted.find((member) => member.id === options[name]) ?? otherwise;
  const left = of("left", sorted[0]);
  const right = of("right", sorted.findLast((member) => member !== left) ?? null);
  const list = packed({ group: id });
  const same = together(group.members);
  const one = (side, member, other) => html`<${Member} key=${side} side=${side} member=${member} other=${other} members=${sorted} run=${run} list=${list} same=${same} />`;
  return html`<p>${group.cause || group.status}${group.step === null ? "" : `, in batch ${group.step}`} · task ${group.task || "–"} ·
      ${" "}rewards ${sorted.map((member) => figure(member.reward)).join(", ")}</p>
    ${group.expected && html`<dl class="result"><div class="expected"><dt>expected</dt><dd><${Text} value=${group.expected} /></dd></div></dl>`}
    ${same > 0 && html`<details open><summary>What all of them received</summary>
      <${Conversation} messages=${group.members[0].messages.slice(0, same)} /></details>`}
    ${right && left.reward === right.reward && html`<p class="quiet">${sorted[0].reward === sorted.at(-1).reward ? (group.left_out ? "All members in this file" : "All members") : "These two"} have the same reward.</p>`}
    <div class="members" role="region" aria-label="two members">
      ${one("left", left, right)}${right && one("right", right, left)}
    </div>
    <h2>${group.left_out ? "The members in this file" : "All members"}</h2>
    ${group.left_out > 0 && html`<p class="quiet">${group.left_out} of ${group.members.length + group.left_out} members of this group are left out of the file (--episodes).</p>`}
    <${All} run=${run} members=${sorted} chosen=${[left, right]} list=${list} />
    <details><summary>Task</summary><${Text} value=${group.task_data} /></details>`;
}

function Member({ side, member, other, members, run, list, same }) {
  const kind = !other || member.reward === other.reward ? "" : member.reward > other.reward ? "passes" : "fails";
  return html`<article class=${kind}>
    <h2><a href=${toEpisode(run, member.id, list)}>${member.id}</a> <span class="end">reward <b>${figure(member.reward)}</b></span></h2>
    <p><${Verdict} episode=${{ ...member, verdict: text(member.verdict) }} /> <${Parts} parts=${parts(member)} other=${other && parts(other)} /></p>
    <p class="quiet">advantage ${figure(member.advantage)}, ${counted(member.turns, "turn")}, ${counted(member.tokens, "token")}
      ${members.length > 2 && html` · <label>instead <select value=${member.id} onChange=${(e) => change({ [side]: e.target.value })}>
        ${members.map((each) => html`<option value=${each.id}>${each.id}: ${figure(each.reward)}</option>`)}</select></label>`}</p>
    ${member.error && html`<pre class="error">${text(member.error)}</pre>`}
    ${member.seats.length > 0
      ? html`<${Game} seats=${member.seats} moves=${member.moves} of=${member.id} />`
      : html`<${Conversation} messages=${member.messages.slice(same)} />`}
  </article>`;
}

function All({ run, members, chosen, list }) {
  const names = [...new Set(members.flatMap((member) => Object.keys(parts(member))))];
  return html`<div class="scroll" tabindex="0" role="region" aria-label="all members">
    <table class="all-members"><thead><tr><th scope="col">member</th>
      ${["reward", ...names, "advantage", "turns", "tokens"].map((name) => html`<th scope="col" class="number">${name}</th>`)}<th scope="col">verdict</th></tr></thead>
    <tbody>${members.map((member) => html`<tr class=${chosen.includes(member) ? "chosen" : ""}>
      <td><a href=${toEpisode(run, member.id, list)}>${member.id}</a></td><td class="number"><b>${figure(member.reward)}</b></td>
      ${names.map((name) => html`<td class="number">${figure(parts(member)[name])}</td>`)}
      <td class="number">${figure(member.advantage)}</td><td class="number">${member.turns}</td><td class="number">${count(member.tokens)}</td>
      <td><${Verdict} episode=${{ ...member, verdict: text(member.verdict).slice(0, 80) }} /></td></tr>`)}</tbody></table></div>`;
}

// The parts of a member's reward, and those of a game's seats.
const parts = (member) => ({ ...Object.fromEntries(member.seats.map(({ seat, reward }) => [`seat ${seat}`, reward])), ...member.parts });

// How many messages all members begin with; what one said itself stays with it.
function together(members) {
  if (members.some((member) => member.seats.length)) return 0;
  const [first, ...others] = members.map((member) => member.messages.map((it) => JSON.stringify(it)));
  if (!others.length) return 0;
  let same = 0;
  while (same < first.length && members[0].messages[same].role !== "assistant" && others.every((it) => it[same] === first[same])) same += 1;
  return same;
}
