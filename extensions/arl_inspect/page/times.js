// Durations and moments as people read them.

import { unknown } from "./format.js";

// Two units where the first is small: "1 h 5 min", "42 s", "38 min".
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return unknown;
  let left = Math.round(seconds);
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const whole = Math.floor(left / length);
    left -= whole * length;
    if (whole) parts.push(`${whole} ${unit}`);
    else if (parts.length) break; // "1 h", not "1 h 12 s"
    if (parts.length === 2 || whole >= 10) break;
  }
  return parts.join(" ") || "0 s";
}

export function moment(seconds) {
  if (seconds === null || seconds === undefined) return unknown;
  const then = new Date(seconds * 1000);
  const isThisYear = then.getFullYear() === new Date().getFullYear();
  const day = then.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...(isThisYear ? {} : { year: "numeric" }) });
  return `${day} ${then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}
