// Plotly reads tags and entities in every text it draws; names must arrive as themselves.

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** @param {string} text */
export function escapePlotText(text) {
  return text.replace(/[&<>]/g, (character) => ENTITIES[character]);
}
