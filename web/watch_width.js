// Tells when an element became wider or narrower.

/** A new width asks for new columns once it stays. Milliseconds. */
const SETTLE_MS = 250;

/** Calls back when the width, and not only the height, changed. @param {HTMLElement} element @param {() => void} changed */
export function watchWidth(element, changed) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    const before = width;
    width = element.clientWidth;
    if (before && width && before !== width) changed();
  });
  observer.observe(element);
  return () => observer.disconnect();
}

/** Also, once the width stays, what its new width is to be filled with. @param {HTMLElement} element @param {() => void} changed at each change @param {() => void} settled */
export function settledWidth(element, changed, settled) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const stop = watchWidth(element, () => {
    changed();
    clearTimeout(timer);
    timer = setTimeout(settled, SETTLE_MS);
  });
  return () => {
    clearTimeout(timer);
    stop();
  };
}
