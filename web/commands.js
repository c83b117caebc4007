// What a key of keys.js does: it goes to a page, or presses the button of that command on the page that is shown.

import { PAGES } from "./pages/index.js";
import { findPage } from "./router.js";
import { parseState, runPath } from "./url_state.js";

/**
 * @typedef {object} Shell
 * @property {{follow: (page: string) => boolean}} nav
 * @property {() => void} help
 * @property {ReturnType<typeof import("./components/layer_search.js").createLayerSearch>} layerSearch
 * @property {(path: string) => void} navigate
 */

/** @param {Shell} shell @returns {(key: import("./keys.js").Key) => boolean} whether there was something to do */
export function createCommands({ nav, help, layerSearch, navigate }) {
  /** The layers' filter, on their page where this one has none. */
  function search() {
    const id = findPage(PAGES, location.pathname)?.params.id;
    if (layerSearch.focus(id !== undefined) || id === undefined) return;
    navigate(runPath(id, "layers", { ...parseState(location.search), step: null, tensor: null, key: "", from: null, to: null }));
    layerSearch.focusSoon();
  }

  /** @type {Record<string, () => void>} */
  const own = { help, search };

  return ({ command = "", page }) => {
    if (page) return nav.follow(page);
    if (own[command]) own[command]();
    return Boolean(own[command]) || pressed(command);
  };
}

/** Its button, if it can be seen now. @param {string} command */
function pressed(command) {
  const button = [...document.querySelectorAll(`[data-command="${CSS.escape(command)}"]`)].find((one) => one.checkVisibility());
  if (button instanceof HTMLElement) button.click();
  return Boolean(button);
}
