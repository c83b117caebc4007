// Tells when an element became wider or narrower.

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
