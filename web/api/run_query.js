// The list of runs in the address: search, order, archived ones, page. Pure.

/** @typedef {{q: string, sort: string, archived: string, before: string, offset: string}} RunQuery */

/** @type {Record<string, string>} */
export const SORTS = { newest: "newest first", oldest: "oldest first", seen: "last seen first", name: "by name" };

/** What a press on a column's name asks for, and how the column is sorted then; a second press asks for the next. @type {Record<string, {sort: string, way: "ascending" | "descending"}[]>} */
const BY_COLUMN = {
  Run: [{ sort: "name", way: "ascending" }],
  State: [{ sort: "seen", way: "descending" }],
  Age: [{ sort: "", way: "ascending" }, { sort: "oldest", way: "descending" }],
};

/** The order that a press on a column's name asks for; null where there is none. @param {string} column @param {string} sort as it is now */
export function nextSort(column, sort) {
  const ways = BY_COLUMN[column];
  return ways ? ways[(ways.findIndex((one) => one.sort === sort) + 1) % ways.length].sort : null;
}

/** How a column is sorted, for `aria-sort`. @param {string} column @param {string} sort */
export const sortedBy = (column, sort) => BY_COLUMN[column]?.find((one) => one.sort === sort)?.way ?? null;

/** @type {Record<string, string>} what is asked for -> what the server is told */
export const SHOWN = { "": "not archived", only: "archived", all: "all" };
const ARCHIVED = /** @type {Record<string, string>} */ ({ "": "false", only: "true", all: "" });

/** @param {string} search @returns {RunQuery} */
export function parseRunQuery(search) {
  const query = new URLSearchParams(search);
  const number = (/** @type {string} */ name) => (/^\d{1,15}$/.test(query.get(name) ?? "") ? (query.get(name) ?? "") : "");
  const sort = query.get("sort") ?? "";
  const archived = query.get("archived") ?? "";
  return {
    q: query.get("q") ?? "",
    sort: Object.hasOwn(SORTS, sort) && sort !== "newest" ? sort : "",
    archived: Object.hasOwn(SHOWN, archived) ? archived : "",
    before: number("before"),
    offset: number("offset"),
  };
}

/** The address of the list so. @param {Partial<RunQuery>} query */
export function runsPath(query) {
  const out = new URLSearchParams();
  for (const name of /** @type {const} */ (["q", "sort", "archived", "before", "offset"])) if (query[name]) out.set(name, String(query[name]));
  const text = out.toString();
  return text ? `/?${text}` : "/";
}

/** What the server is asked. @param {RunQuery} query @returns {import("./client.js").Query} */
export function asked({ q, sort, archived, before, offset }) {
  return { q: q.slice(0, 200), sort, archived: ARCHIVED[archived], before: sort ? "" : before, offset: sort ? offset : "" };
}

/**
 * Ways to the first page and to the one behind this.
 * @param {RunQuery} query @param {{runs: readonly unknown[], next: number | null, total: number}} page
 * @returns {{first: string | null, more: string | null}}
 */
export function pages(query, { runs, next, total }) {
  const behind = Number(query.offset || 0) + runs.length;
  const more = query.sort ? behind < total && { offset: String(behind) } : next !== null && { before: String(next) };
  const plain = { ...query, before: "", offset: "" };
  return { first: query.before || query.offset ? runsPath(plain) : null, more: more && runs.length ? runsPath({ ...plain, ...more }) : null };
}
