// Keys that work on every page and in lists.

const FIELDS = "input, textarea, select, [contenteditable]";

// "/" goes to the page's search field, which has the attribute data-search.
export function goToSearch(event) {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof Element && event.target.matches(FIELDS)) return;
  const field = document.querySelector("[data-search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
}

// In an element with links of the attribute data-row: arrows, Home and End go from one to the next.
export function moveInRows(event) {
  const isField = event.target instanceof Element && event.target.matches("textarea, select");
  if (isField || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = [...event.currentTarget.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
  const now = rows.findIndex((row) => row === document.activeElement || row.closest("tr, li")?.contains(document.activeElement));
  const isSearch = event.target.matches?.("[data-search]");
  const to = {
    ArrowDown: now + 1,
    ArrowUp: now < 0 ? 0 : now - 1,
    ...(isSearch ? {} : { Home: 0, End: rows.length - 1 }),
  }[event.key];
  if (to === undefined || !rows.length) return;
  event.preventDefault();
  if (to < 0) event.currentTarget.querySelector("[data-search]")?.focus();
  else rows[Math.min(to, rows.length - 1)].focus();
}
