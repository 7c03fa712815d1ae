// What colours of tokens mean. Scales that differ in lightness too, so that those who see few
// colours tell them apart; text on them is black or white, whichever is clearer.

// Okabe and Ito's, but for black: https://jfly.uni-koeln.de/color/
const DISTINCT = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"];

const mix = (from, to, share) =>
  from.map((value, i) => Math.round(value + (to[i] - value) * share));
const hex = (rgb) => `#${rgb.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
const rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
// Where a scale begins, and its ends: on dark paper little is dark and much is bright.
const ENDS = {
  light: { none: "#f3f4f6", brown: "#9a3412", violet: "#6b21a8", blue: "#075985" },
  dark: { none: "#2c313a", brown: "#ff9d5c", violet: "#d8a6ff", blue: "#6cc4ff" },
};

export function ink(background) {
  const [r, g, b] = rgb(background).map((v) => {
    const share = v / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000000" : "#ffffff";
}

export const KINDS = {
  version: "policy version",
  behavior: "behavior log-prob",
  gap: "|proximal − behavior|",
  advantage: "advantage",
};

// The distinct versions of a row, ascending.
const versions = (row) => [...new Set(row.version.filter((v) => v !== null))].sort((a, b) => a - b);

// {of(i): colour or null, legend: [[colour, words]], missing: why there is nothing to be seen}
export function colouring(kind, row, theme) {
  const ends = ENDS[theme] ?? ENDS.light;
  const scale = (end, share) =>
    hex(mix(rgb(ends.none), rgb(ends[end]), Math.min(Math.max(share, 0), 1)));
  if (kind === "version") {
    const all = versions(row);
    // A version has the same colour in all episodes, unless two of this row would share it.
    const isClear = new Set(all.map((version) => version % DISTINCT.length)).size === all.length;
    const colour = (version) => DISTINCT[(isClear ? version : all.indexOf(version)) % DISTINCT.length];
    const sampled = (version) => row.version.filter((each) => each === version).length;
    return {
      of: (i) => (row.version[i] === null ? null : colour(row.version[i])),
      legend: all.map((version) => [colour(version), `version ${version}: ${sampled(version)}`]),
      missing: all.length ? "" : "nothing in this row was sampled",
    };
  }
  if (kind === "behavior") {
    const share = (value) => -value / 4;
    return {
      of: (i) => (row.behavior[i] === null ? null : scale("brown", share(row.behavior[i]))),
      legend: [0, -1, -2, -4].map((v) => [scale("brown", share(v)), v ? String(v) : "0: certain"]),
      missing: "",
    };
  }
  if (kind === "gap") {
    if (!row.proximal) return nothing("proximal log-probs of this row");
    const gap = (i) =>
      row.proximal[i] === null || row.behavior[i] === null
        ? null
        : Math.abs(row.proximal[i] - row.behavior[i]);
    const share = (value) => Math.log10(1 + 1000 * value) / 3;
    return {
      of: (i) => (gap(i) === null ? null : scale("violet", share(gap(i)))),
      legend: [0, 0.01, 0.1, 1].map((v) => [scale("violet", share(v)), String(v)]),
      missing: "",
    };
  }
  if (!row.advantage) return nothing("advantages of this row");
  const largest = Math.max(...row.advantage.map((v) => Math.abs(v ?? 0)), 1e-9);
  const colour = (value) => scale(value < 0 ? "brown" : "blue", Math.abs(value) / largest);
  return {
    of: (i) => (row.advantage[i] === null ? null : colour(row.advantage[i])),
    legend: [-largest, 0, largest].map((v) => [colour(v), v.toPrecision(2)]),
    missing: "",
  };
}

function nothing(what) {
  return {
    of: () => null,
    legend: [],
    missing: `There are no ${what}: it was not trained, or the run kept none (logging.tokens).`,
  };
}
