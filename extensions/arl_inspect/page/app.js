// The page: what the address asks for, with the data that are here.

import { Curves } from "./curves.js";
import { Episode } from "./episode.js";
import { Episodes } from "./episodes.js";
import { frozen } from "./frozen.js";
import { Group } from "./group.js";
import { link, read, split } from "./hash.js";
import { goToSearch } from "./keyboard.js";
import { live } from "./live.js";
import { Runs } from "./runs.js";
import { Timeline } from "./timeline.js";
import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/preact.js";

const VIEWS = { runs: Runs, curves: Curves, timeline: Timeline, episodes: Episodes, episode: Episode, group: Group };

function App({ source }) {
  const [at, go] = useState(read());
  const [tick, renew] = useState(0);
  const [theme, setTheme] = useTheme();
  const [error, forget] = useErrorBoundary((caught) => console.error(caught));
  useEffect(() => {
    const changed = () => {
      forget();
      go(read());
    };
    addEventListener("hashchange", changed);
    if (JSON.stringify(read()) !== JSON.stringify(at)) changed(); // before anybody listened
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    let later = 0; // answers may be half a second old: what is asked for at once may lack the news
    const again = () => renew((n) => n + 1);
    const stop = source.follow(() => {
      again();
      clearTimeout(later);
      later = setTimeout(again, 1000);
    });
    return () => {
      clearTimeout(later);
      stop();
    };
  }, [source]);
  useEffect(() => {
    addEventListener("keydown", goToSearch);
    return () => removeEventListener("keydown", goToSearch);
  }, []);
  const View = VIEWS[at.view];
  const run = at.view === "runs" ? "" : split(at.about)[0];
  useEffect(() => {
    document.title = `${at.about || at.view} · arl inspect`;
  }, [at]);
  return html`<header>
      <a class="name" href=${link("runs")}>arl inspect</a>
      <nav aria-label="views">
        <a href=${link("runs")} aria-current=${at.view === "runs" ? "page" : null}>runs</a>
        ${run && ["curves", "timeline", "episodes"].map((view) => html`<a href=${link(view, run)} aria-current=${at.view === view ? "page" : null}>${view}</a>`)}
      </nav>
      <${Theme} theme=${theme} set=${setTheme} />
    </header>
    <main key=${`${at.view} ${at.about}`}>
      ${!source.isLive && html`<p class="quiet">A picture of ${new Date(source.madeS * 1000).toLocaleString("en")}.${run && source.leftOut(run) > 0 ? ` Of this run the details of ${source.leftOut(run)} episodes are left out.` : ""}</p>`}
      ${error
        ? html`<p class="error" role="alert">This view failed: ${String(error.message ?? error)}. <button type="button" onClick=${forget}>again</button></p>`
        : View
          ? html`<${View} source=${source} about=${at.about} options=${at.options} tick=${tick} theme=${theme} />`
          : html`<p>There is no view ${at.view}. <a href=${link("runs")}>All runs</a></p>`}
    </main>`;
}

// As the system says, also when that changes, until somebody has switched it.
function useTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const wanted = () => kept() ?? (system.matches ? "dark" : "light");
  const [theme, set] = useState(wanted());
  useEffect(() => {
    const changed = () => set(wanted());
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  document.documentElement.dataset.theme = theme;
  return [theme, set];
}

function Theme({ theme, set }) {
  const other = theme === "dark" ? "light" : "dark";
  return html`<button type="button" class="theme" onClick=${() => (keep(other), set(other))}>${other}</button>`;
}

// Pages from a file may have no storage.
function kept() {
  try {
    return localStorage.getItem("arl-theme");
  } catch {
    return null;
  }
}

function keep(theme) {
  try {
    localStorage.setItem("arl-theme", theme);
  } catch {
    // it is forgotten with the page
  }
}

const place = document.getElementById("app");
const data = document.getElementById("arl-data");
try {
  const source = data ? await frozen(data) : live;
  place.textContent = "";
  render(html`<${App} source=${source} />`, place);
} catch (error) {
  place.textContent = `The data of this page cannot be read: ${error.message}`;
}
