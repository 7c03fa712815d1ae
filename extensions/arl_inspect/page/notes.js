// Notes and tags of a run, and the form in which they are edited.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";

export function Tags({ run, onTag }) {
  if (!run.tags?.length) return null;
  return html`<span class="tags">${run.tags.map((tag) => html`<button type="button" class="tag" title="search for this tag" onClick=${() => onTag(tag)}>${tag}</button>`)}</span>`;
}

export function NotesForm({ source, run, close, saved }) {
  const [tags, setTags] = useState((run.tags ?? []).join(", "));
  const [notes, setNotes] = useState(run.notes ?? "");
  const [error, setError] = useState("");
  const first = useRef(null);
  useEffect(() => first.current.focus(), []);
  const save = async (event) => {
    event.preventDefault();
    try {
      await source.writeNotes(run.id, { notes, tags: tags.split(",").map((tag) => tag.trim()).filter(Boolean) });
      saved();
    } catch (caught) {
      setError(caught.message);
    }
  };
  const keys = (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
  };
  return html`<form class="notes-form" aria-label=${`notes of ${run.id}`} onSubmit=${save} onKeyDown=${keys}>
    <label>tags, separated by commas <input ref=${first} value=${tags} onInput=${(e) => setTags(e.target.value)} /></label>
    <label>notes <textarea rows="3" value=${notes} onInput=${(e) => setNotes(e.target.value)}></textarea></label>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <p class="bar"><button type="submit">Save</button> <button type="button" onClick=${close}>Cancel</button>
      <span class="quiet">kept in notes.json of the run's folder; Ctrl+Enter saves, Escape cancels</span></p>
  </form>`;
}
