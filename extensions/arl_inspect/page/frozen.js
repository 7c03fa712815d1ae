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
  version: (e, value) => e.oldest_version !== null && e.oldest_version <= Number(value) && Number(value) <= e.newest_version,
  seat: (e, value) => value in e.seats,
  q: (e, value) => {
    const [asked, everything] = [value.toLowerCase(), textsOf(e)];
    return [e.id, e.group, e.task].some((text) => text.toLowerCase().includes(asked))
      || (wordsOf(asked).length > 0 && wordsOf(asked).every((word) => everything.includes(word)));
  },
};

// As the server's: words, and what stands in double quotation marks.
const wordsOf = (query) => query.split('"').flatMap((part, i) => (i % 2 ? [part] : part.split(/\s+/))).filter(Boolean);

// The texts of an episode that are in this file: those of the table, and all if it has the details.
function textsOf(e) {
  e.texts ??= strings([e.question, e.answer, e.expected, e.verdict, e.details?.messages, e.details?.error, e.details?.task_data])
    .join("\n").toLowerCase();
  return e.texts;
}

function strings(value) {
  if (typeof value === "string") return [value];
  return value && typeof value === "object" ? Object.values(value).flatMap(strings) : [];
}

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
  return { total: kept.length, episodes: kept.slice(from, from + Number(limit)), complete: true, searched: all.length };
}

function placed(all, id, query) {
  const { total, episodes } = chosen(all, { ...query, offset: 0, limit: all.length });
  const at = episodes.findIndex((e) => e.id === id);
  if (at < 0) return { place: 0, previous: null, next: null, total };
  return { place: at + 1, previous: episodes[at - 1]?.id ?? null, next: episodes[at + 1]?.id ?? null, total };
}

export async function frozen(element) {
  const data = await unpacked(element);
  const get = async (path) => {
    const found = data.answers[`/api/${path}`];
    if (!found) throw new Error("this is not in the file: its details were left out (--episodes)");
    return found;
  };
  const of = (run, rest) => `runs/${encodeURIComponent(run)}/${rest}`;
  const summaries = async (run) => {
    const { episodes } = await get(of(run, "episodes"));
    for (const e of episodes) e.details ??= data.answers[`/api/${of(run, `episodes/${encodeURIComponent(e.id)}`)}`] ?? null;
    return episodes;
  };
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
    episodes: async (run, query) => chosen(await summaries(run), query),
    place: async (run, id, query) => placed(await summaries(run), id, query),
    episode: (run, id) => get(of(run, `episodes/${encodeURIComponent(id)}`)),
    group: (run, id) => get(of(run, `groups/${encodeURIComponent(id)}`)),
    follow: () => () => {},
  };
}
