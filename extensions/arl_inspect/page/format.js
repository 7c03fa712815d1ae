// Numbers and times as people read them.

export const unknown = "–";

export function figure(value, digits = 3) {
  if (value === null || value === undefined) return unknown;
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))));
}

export function count(value) {
  return value === null || value === undefined ? unknown : value.toLocaleString("en");
}

export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function ago(seconds) {
  if (seconds === null || seconds === undefined) return unknown;
  const past = Math.max(Date.now() / 1000 - seconds, 0);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (past >= length) return `${Math.round(past / length)} ${unit} ago`;
  }
  return `${Math.round(past)} s ago`;
}

// Anything as text: episodes hold what models said, which is anything.
export function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
