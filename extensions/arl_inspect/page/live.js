// Data of runs that a server has, which may go on meanwhile.

async function get(path, parameters = {}) {
  const asked = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined),
  ).toString();
  const answer = await fetch(`api/${path}${asked ? `?${asked}` : ""}`);
  const found = await answer.json().catch(() => ({ error: `HTTP ${answer.status}, and no JSON` }));
  if (!answer.ok) throw new Error(found.error || `HTTP ${answer.status}`);
  return found;
}

async function put(path, content) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`api/${path}`, { method: "PUT", headers, body: JSON.stringify(content) });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error || `HTTP ${answer.status}`);
  return found;
}

const of = (run, rest) => `runs/${encodeURIComponent(run)}/${rest}`;

export const live = {
  isLive: true,
  leftOut: () => 0,
  runs: () => get("runs"),
  writeNotes: (run, notes) => put(of(run, "notes"), notes),
  config: (run) => get(of(run, "config")),
  metrics: (run, after) => get(of(run, "metrics"), { after }),
  timeline: (run, steps) => get(of(run, "timeline"), { steps }),
  facets: (run) => get(of(run, "facets")),
  episodes: (run, query) => get(of(run, "episodes"), query),
  episode: (run, id) => get(of(run, `episodes/${encodeURIComponent(id)}`)),
  place: (run, id, query) => get(of(run, `episodes/${encodeURIComponent(id)}/place`), query),
  group: (run, id) => get(of(run, `groups/${encodeURIComponent(id)}`)),
  // Call `changed` when a run goes on, and whenever it begins to listen (anew): what happened
  // before that was told to nobody. Returns what ends it.
  follow(changed) {
    const events = new EventSource("api/events");
    events.addEventListener("open", changed);
    events.addEventListener("change", changed);
    return () => events.close();
  },
};
