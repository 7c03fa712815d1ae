// How an episode's turns follow from each other: forks as a tree.

import { html } from "./vendor/preact.js";

const STEP_X = 46;
const STEP_Y = 34;

// Turn by depth, and one lane for each branch: the first child stays in its parent's.
function placed(tree) {
  const found = new Map();
  let lanes = 0;
  for (const { turn, parent } of tree) {
    const above = found.get(parent);
    const x = above ? above.x + 1 : 0;
    const y = above && !above.hasChild ? above.y : lanes;
    if (above && !above.hasChild) above.hasChild = true;
    else lanes += 1;
    found.set(turn, { x, y, hasChild: false });
  }
  return { found, lanes };
}

export function Tree({ tree, lineage, choose }) {
  if (tree.length < 2) return null;
  const { found, lanes } = placed(tree);
  const width = (Math.max(...[...found.values()].map((p) => p.x)) + 1) * STEP_X + 8;
  const centre = (p) => [p.x * STEP_X + 18, p.y * STEP_Y + 18];
  return html`<h2>Turns</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="turns as a tree">
      <svg class="tree" width=${width} height=${lanes * STEP_Y + 6} role="img" aria-label=${`${tree.length} turns in ${lanes} branches`}>
        ${tree.filter((t) => t.parent >= 0).map((t) => {
          const [x1, y1] = centre(found.get(t.parent));
          const [x2, y2] = centre(found.get(t.turn));
          return html`<path d=${`M${x1} ${y1} C ${x1 + 20} ${y1}, ${x2 - 20} ${y2}, ${x2} ${y2}`} />`;
        })}
        ${tree.map((t) => {
          const [x, y] = centre(found.get(t.turn));
          return html`<g class=${t.lineage === lineage ? "chosen" : ""} onClick=${() => choose(t.lineage)}>
            <circle cx=${x} cy=${y} r="13" /><text x=${x} y=${y + 4}>${t.turn}</text>
            <title>turn ${t.turn}, conversation ${t.lineage}${t.reward === null ? "" : `, paid ${t.reward}`}</title>
          </g>`;
        })}
      </svg>
    </div>`;
}
