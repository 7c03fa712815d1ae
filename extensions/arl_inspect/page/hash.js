// What is looked at, in the part of the address after "#": `view=about&filter=value`. Every view can
// be shared as a link.

export function read(hash = location.hash) {
  const pairs = [...new URLSearchParams(hash.replace(/^#/, ""))];
  const [view, about] = pairs.length ? pairs[0] : ["runs", ""];
  return { view: view || "runs", about, options: Object.fromEntries(pairs.slice(1)) };
}

export function link(view, about = "", options = {}) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(options)) {
    if (value !== "" && value !== null && value !== undefined) pairs.append(name, value);
  }
  const tail = pairs.toString();
  return `#${view}${about === "" ? "" : `=${encodeURIComponent(about)}`}${tail ? `&${tail}` : ""}`;
}

// Change some options of what is looked at, without a new entry in the history.
export function change(options) {
  const now = read();
  history.replaceState(null, "", link(now.view, now.about, { ...now.options, ...options }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

// "RUN/EPISODE": ids of runs hold no slash, as they are names of folders.
export function split(about) {
  const at = about.indexOf("/");
  return at < 0 ? [about, ""] : [about.slice(0, at), about.slice(at + 1)];
}
