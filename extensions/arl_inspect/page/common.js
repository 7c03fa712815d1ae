// What all views use.

import { html, useEffect, useState } from "./vendor/preact.js";

// What `ask` answers: {found, error}, asked again when one of `on` changes. The old answer stays
// until the new one is there.
export function useAnswer(ask, on) {
  const [state, set] = useState({ found: null, error: "" });
  useEffect(() => {
    let isWanted = true;
    ask().then(
      (found) => isWanted && set({ found, error: "" }),
      (error) => isWanted && set((old) => ({ found: old.found, error: error.message })),
    );
    return () => (isWanted = false);
  }, on);
  return state;
}

export function Answer({ state, children }) {
  if (state.error && !state.found) return html`<p class="error" role="alert">${state.error}</p>`;
  if (!state.found) return html`<p class="quiet" role="status">reading …</p>`;
  return html`${state.error && html`<p class="error" role="alert">${state.error}</p>`}
    ${children(state.found)}`;
}
