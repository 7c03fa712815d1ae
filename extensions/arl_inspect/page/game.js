// A game as it went: a column for each seat, a row for each move, in the order of time.

import { Body } from "./body.js";
import { Parts } from "./columns.js";
import { Conversation } from "./conversation.js";
import { figure } from "./format.js";
import { html } from "./vendor/preact.js";

export function Game({ seats, moves, of }) {
  const columns = { gridTemplateColumns: `repeat(${seats.length}, minmax(14rem, 1fr))` };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`moves of ${of}`}>
    <div class="game" style=${columns}>
      ${seats.map((seat, k) => html`<div class=${`seat seat-${k % 4}`} style=${{ gridColumn: k + 1, gridRow: 1 }}>
        <b>seat ${seat.seat}</b> <span class="quiet">${seat.player}</span>
        <span class="end">reward <b class=${seat.reward > 0 ? "good" : seat.reward < 0 ? "poor" : ""}>${figure(seat.reward)}</b></span>
        ${seat.outcome !== "completed" && html` <span class=${`state ${seat.outcome}`}>${seat.outcome}</span>`}
        ${Object.keys(seat.parts).length > 0 && html`<${Parts} parts=${seat.parts} />`}
      </div>`)}
      ${moves.map((move, i) => html`<section class=${`move seat-${move.seat % 4}`} style=${{ gridColumn: move.seat + 1, gridRow: i + 2 }}
        aria-label=${`${of}: move ${i + 1}, seat ${seats[move.seat].seat}`}>
        <div class="role">${i + 1} <span class="of">seat ${seats[move.seat].seat}</span></div>
        ${simple(move.messages)
          ? move.messages.map((message) => html`<div class=${message.role === "assistant" ? "reply" : "board"}>
              <span class="hidden">${message.role}</span><${Body} message=${message} from=${message.role} /></div>`)
          : html`<${Conversation} messages=${move.messages} />`}
      </section>`)}
    </div>
  </div>`;
}

// Whether the messages are only what a seat saw and replied: no calls, no thoughts.
const simple = (messages) => messages.every((it) => ["user", "assistant", "system"].includes(it.role)
  && !it.tool_calls?.length && !it.reasoning_content);
