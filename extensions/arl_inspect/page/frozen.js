// Data of runs that are in the page itself (`arl inspect --html`): the same answers, by route.

async function unpacked(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const KEYS = {
  row: (e) => e.row,
  reward: (e) => e.reward,
  tokens: (e) => e.tokens,
  turns: (e) => e.turns,
  step: (e) => e.step ?? 0,
};

const FILTERS = {
  outcome: (e, value) => e.outcome === value,
  env: (e, value) => e.env === value,
  status: (e, value) => e.status === value,
  group: (e, value) => e.group === value,
  step: (e, value) => e.step === Number(value),
  fork: (e, value) => (value === "any" ? Object.keys(e.forks).length > 0 : value in e.forks),
  reward_min: (e, value) => e.reward >= Number(value),
  reward_max: (e, value) => e.reward <= Number(value),
  tokens_min: (e, value) => e.tokens >= Number(value),
  tokens_max: (e, value) => e.tokens <= Number(value),
  q: (e, value) =>
    [e.id, e.group, e.task].some((text) => text.toLowerCase().includes(value.toLowerCase())),
};

// As the server's: ties are broken by `row`, as the sort goes; without a step comes last.
export function chosen(all, query) {
  const { sort = "-row", offset = 0, limit = 100, ...filters } = query;
  const asked = Object.entries(filters).filter(([, value]) => value !== "" && value !== undefined);
  const key = KEYS[sort.replace(/^-/, "")] ?? KEYS.row;
  const sign = sort.startsWith("-") ? -1 : 1;
  const kept = all.filter((e) => asked.every(([name, value]) => FILTERS[name](e, value)));
  const isLast = (e) => (key === KEYS.step && e.step === null ? 1 : 0);
  kept.sort((a, b) => isLast(a) - isLast(b) || sign * (key(a) - key(b)) || sign * (a.row - b.row));
  const from = Number(offset);
  return { total: kept.length, episodes: kept.slice(from, from + Number(limit)), complete: true };
}

export async function frozen(element) {
  const data = await unpacked(element);
  const get = async (path) => {
    const found = data.answers[`/api/${path}`];
    if (!found) throw new Error("this is not in the file: its details were left out (--episodes)");
    return found;
  };
  const of = (run, rest) => `runs/${encodeURIComponent(run)}/${rest}`;
  return {
    isLive: false,
    madeS: data.made_s,
    leftOut: (run) => data.left_out[run] ?? 0,
    runs: () => get("runs"),
    config: (run) => get(of(run, "config")),
    async metrics(run, after = -1) {
      const found = await get(of(run, "metrics"));
      return { ...found, rows: found.rows.filter((row) => row.step > after) };
    },
    timeline: (run) => get(of(run, "timeline")),
    facets: (run) => get(of(run, "facets")),
    episodes: async (run, query) => chosen((await get(of(run, "episodes"))).episodes, query),
    episode: (run, id) => get(of(run, `episodes/${encodeURIComponent(id)}`)),
    group: (run, id) => get(of(run, `groups/${encodeURIComponent(id)}`)),
    follow: () => () => {},
  };
}
