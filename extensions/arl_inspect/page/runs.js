// The runs that are here; some of them can be chosen, and their curves compared.

import { Answer, useAnswer } from "./common.js";
import { ago, count, figure } from "./format.js";
import { link } from "./hash.js";
import { html, useState } from "./vendor/preact.js";

export function Runs({ source, tick }) {
  const state = useAnswer(() => source.runs(), [source, tick]);
  const [chosen, choose] = useState(() => new Set());
  const toggle = (id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    choose(next);
  };
  return html`<h1>Runs</h1>
    <${Answer} state=${state}>${({ runs }) =>
      runs.length === 0
        ? html`<p>No runs here yet. <code>arl train --env math --agent react</code> makes one.</p>`
        : html`<p class="bar">
              <a
                class=${`button ${chosen.size ? "" : "off"}`}
                aria-disabled=${chosen.size ? "false" : "true"}
                href=${chosen.size ? link("curves", [...chosen].join(",")) : link("runs")}
                >Compare ${chosen.size || ""} curves</a
              >
            </p>
            <div class="scroll" tabindex="0" role="region" aria-label="runs">
              <table>
                <thead>
                  <tr>
                    ${["", "run", "state", "batches", "reward", "episodes", "environment", "agent",
                      "engine", "written"].map((name) => html`<th scope="col">${name || html`<span class="hidden">chosen</span>`}</th>`)}
                  </tr>
                </thead>
                <tbody>
                  ${[...runs].reverse().map((run) => html`<${Run} run=${run} key=${run.id} isChosen=${chosen.has(run.id)} toggle=${toggle} />`)}
                </tbody>
              </table>
            </div>`}<//>`;
}

function Run({ run, isChosen, toggle }) {
  return html`<tr>
    <td><input type="checkbox" aria-label=${`choose ${run.id}`} checked=${isChosen} onChange=${() => toggle(run.id)} /></td>
    <td><a href=${link("curves", run.id)}>${run.id}</a>${run.error && html`<div class="error">${run.error}</div>`}</td>
    <td><span class=${`state ${run.status}`}>${run.status}</span></td>
    <td class="number">${run.steps}/${run.steps_planned}</td>
    <td class="number">${figure(run.reward)}</td>
    <td class="number"><a href=${link("episodes", run.id)}>${count(run.episodes)}</a></td>
    <td>${run.env}</td>
    <td>${run.agent}</td>
    <td>${run.engine}</td>
    <td>${ago(run.updated_s)}</td>
  </tr>`;
}
