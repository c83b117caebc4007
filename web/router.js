// Path patterns such as "/runs/{id}/layers". Pure: app.js owns the history.

/** @param {string} pattern @param {string} path @returns {Record<string, string> | null} */
export function matchPath(pattern, path) {
  const wanted = segments(pattern);
  const given = segments(path);
  if (wanted.length !== given.length) return null;
  /** @type {Record<string, string>} */
  const params = {};
  for (const [i, name] of wanted.entries()) {
    if (!isParameter(name)) {
      if (name !== given[i]) return null;
    } else {
      const value = decode(given[i]);
      if (value === null) return null;
      params[name.slice(1, -1)] = value;
    }
  }
  return params;
}

/** @param {string} pattern @param {Record<string, string>} params */
export function buildPath(pattern, params) {
  return pattern.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(params[name]));
}

/**
 * The first page whose pattern fits, with its parameters.
 * @template {{path: string}} P
 * @param {readonly P[]} pages @param {string} path @returns {{page: P, params: Record<string, string>} | null}
 */
export function findPage(pages, path) {
  for (const page of pages) {
    const params = matchPath(page.path, path);
    if (params) return { page, params };
  }
  return null;
}

/** @param {string} path */
const segments = (path) => path.split("/").filter(Boolean);

/** @param {string} segment */
const isParameter = (segment) => segment.startsWith("{") && segment.endsWith("}");

/** @param {string} text @returns {string | null} */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null; // a stray % in a typed address
  }
}
