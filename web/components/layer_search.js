// The field that searches the layers: focused where it is, or as soon as the page that has it has drawn it.

const FIELD = "main input[type=search][aria-label=\"Part of a layer's name\"]";
/** Without a run's layers, what the page searches by. */
const ANY_FIELD = "main input[type=search]";
/** A page that takes longer has no such field. Milliseconds. */
const PATIENCE_MS = 20_000;

/** @param {HTMLElement} root where pages are drawn */
export function createLayerSearch(root) {
  const observer = new MutationObserver(() => void (focus(FIELD) && stop()));
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let patience;

  function stop() {
    observer.disconnect();
    clearTimeout(patience);
  }

  return {
    /** Whether there is one. @param {boolean} isOfLayers else any search of the page will do */
    focus: (isOfLayers) => focus(isOfLayers ? FIELD : ANY_FIELD),
    /** Once it is there. */
    focusSoon() {
      stop();
      observer.observe(root, { childList: true, subtree: true });
      patience = setTimeout(stop, PATIENCE_MS);
    },
    stop,
  };
}

/** @param {string} selector */
function focus(selector) {
  const field = [...document.querySelectorAll(selector)].find((one) => one.checkVisibility());
  if (!(field instanceof HTMLInputElement)) return false;
  field.focus();
  field.select();
  return true;
}
