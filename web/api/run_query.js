// The list of runs in the address: search, order, state, archived ones, page, and which are ticked to be compared. Pure.

/** @typedef {{q: string, sort: string, state: string, archived: string, before: string, offset: string, picked: number[]}} RunQuery */

/** More lines than these nobody tells apart, and the server compares no more. */
export const MOST_COMPARED = 8;

/** By what a list of runs is ordered; a leading "-" is the other way round. @type {Record<string, string>} */
export const SORTS = {
  newest: "newest first",
  oldest: "oldest first",
  seen: "last seen first",
  "-seen": "longest unseen first",
  name: "by name",
  "-name": "by name, Z to A",
  state: "by state, gravest first",
  "-state": "by state, calmest first",
  verdict: "by verdict, gravest first",
  "-verdict": "by verdict, calmest first",
  loss: "lowest loss first",
  "-loss": "highest loss first",
  "-step": "most steps first",
  step: "fewest steps first",
  "-ranks": "most ranks first",
  ranks: "fewest ranks first",
  headroom: "least headroom first",
  "-headroom": "most headroom first",
  "-skipped": "most skipped steps first",
  skipped: "fewest skipped steps first",
  scale: "lowest loss scale first",
  "-scale": "highest loss scale first",
};

/** What a press on a column's name asks for, and a second press after it. @type {Record<string, readonly [string, string]>} */
const BY_COLUMN = {
  Run: ["name", "-name"],
  State: ["state", "-state"],
  Verdict: ["verdict", "-verdict"],
  Loss: ["loss", "-loss"],
  Step: ["-step", "step"],
  Ranks: ["-ranks", "ranks"],
  Headroom: ["headroom", "-headroom"],
  Skipped: ["-skipped", "skipped"],
  Scale: ["scale", "-scale"],
  Seen: ["seen", "-seen"],
  Age: ["", "oldest"],
};

/** The order that a press on a column's name asks for; null where there is none. @param {string} column @param {string} sort as it is now */
export function nextSort(column, sort) {
  const ways = BY_COLUMN[column];
  return ways ? ways[(ways.indexOf(sort) + 1) % ways.length] : null;
}

/** How a column is sorted, for `aria-sort`. @param {string} column @param {string} sort @returns {"ascending" | "descending" | null} */
export function sortedBy(column, sort) {
  if (!BY_COLUMN[column]?.includes(sort)) return null;
  return sort.startsWith("-") || sort === "oldest" ? "descending" : "ascending";
}

/** @type {Record<string, string>} what is asked for -> what is sent to the server */
export const SHOWN = { "": "not archived", only: "archived", all: "all" };
const ARCHIVED = /** @type {Record<string, string>} */ ({ "": "false", only: "true", all: "" });

/** @type {Record<string, {text: string, states: string[]}>} */
export const STATES = {
  "": { text: "any", states: [] },
  live: { text: "live", states: ["live", "empty"] },
  trouble: { text: "hung, died, failed, stale or unreadable", states: ["hung", "died", "failed", "stale", "unreadable"] },
  hung: { text: "hung", states: ["hung"] },
  died: { text: "died", states: ["died"] },
  failed: { text: "failed", states: ["failed"] },
  stopped: { text: "stopped or interrupted", states: ["terminated", "interrupted"] },
  stale: { text: "stale", states: ["stale"] },
  finished: { text: "finished", states: ["finished"] },
};

/** "3,1,3" as [3, 1]: whole numbers, each once. @param {string} text */
export const numbersIn = (text) => [...new Set(text.split(",").filter((one) => /^\d{1,15}$/.test(one)).map(Number))];

/** @param {string} search @returns {RunQuery} */
export function parseRunQuery(search) {
  const query = new URLSearchParams(search);
  const number = (/** @type {string} */ name) => (/^\d{1,15}$/.test(query.get(name) ?? "") ? (query.get(name) ?? "") : "");
  const oneOf = (/** @type {string} */ name, /** @type {object} */ known) => (Object.hasOwn(known, query.get(name) ?? "") ? (query.get(name) ?? "") : "");
  const sort = oneOf("sort", SORTS);
  return {
    q: query.get("q") ?? "",
    sort: sort === "newest" ? "" : sort,
    state: oneOf("state", STATES),
    archived: oneOf("archived", SHOWN),
    before: number("before"),
    offset: number("offset"),
    picked: numbersIn(query.get("picked") ?? "").slice(0, MOST_COMPARED),
  };
}

/** The address of the list so. @param {Partial<RunQuery>} query */
export function runsPath({ picked = [], ...query }) {
  const out = new URLSearchParams();
  for (const name of /** @type {const} */ (["q", "sort", "state", "archived", "before", "offset"])) if (query[name]) out.set(name, String(query[name]));
  if (picked.length) out.set("picked", picked.join(","));
  const text = out.toString().replaceAll("%2C", ",");
  return text ? `/?${text}` : "/";
}

/** Of these runs side by side. @param {readonly number[]} runs */
export const comparePath = (runs) => `/compare?runs=${runs.join(",")}`;

/** Whether pages of this list go on by how many were shown: the newest go on before a run. @param {RunQuery} query */
const isByOffset = ({ sort, state }) => sort !== "" || state !== "";

/** What the server is asked. @param {RunQuery} query @returns {import("./client.js").Query} */
export function asked(query) {
  const { q, sort, state, archived, before, offset } = query;
  const isDown = sort.startsWith("-");
  const order = { sort: isDown ? sort.slice(1) : sort, down: isDown ? "true" : "", state: STATES[state].states };
  return { q: q.slice(0, 200), ...order, archived: ARCHIVED[archived], before: isByOffset(query) ? "" : before, offset: isByOffset(query) ? offset : "" };
}

/**
 * Ways to the first page and to the one behind this.
 * @param {RunQuery} query @param {{runs: readonly unknown[], next: number | null, total: number}} page
 * @returns {{first: string | null, more: string | null}}
 */
export function pages(query, { runs, next, total }) {
  const behind = Number(query.offset || 0) + runs.length;
  const more = isByOffset(query) ? behind < total && { offset: String(behind) } : next !== null && { before: String(next) };
  const plain = { ...query, before: "", offset: "" };
  return { first: query.before || query.offset ? runsPath(plain) : null, more: more && runs.length ? runsPath({ ...plain, ...more }) : null };
}
