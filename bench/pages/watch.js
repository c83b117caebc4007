// Runs in each page of `web.py` before the page's own scripts. A lane counts its drawings in data-ready; "drawn" is the
// frame after the one in which the last lane was.

(() => {
  const lanes = () => [...document.querySelectorAll("main .plot")];
  const versions = () => new Map(lanes().map((lane) => [lane, lane.dataset.ready]));
  const isNew = (lane, before) => lane.dataset.ready && lane.dataset.ready !== before.get(lane);
  const areDrawn = (before) => lanes().length > 0 && lanes().every((lane) => isNew(lane, before));

  /** Resolves with the time of the frame after it is so. */
  function when(isSo) {
    return new Promise((resolve) => {
      const look = () => requestAnimationFrame(isSo() ? () => resolve(performance.now()) : look);
      look();
    });
  }

  const bench = { firstView: null, noView: null, took: null, shown: [] };
  window.bench = bench;
  when(() => areDrawn(new Map())).then((ms) => (bench.firstView = ms));
  when(() => document.querySelector("[data-testid=error-state]")).then((ms) => (bench.noView = ms));

  /** `took`: from the next event of this type until every lane has been drawn anew. */
  bench.time = (type) => {
    bench.took = null;
    const before = versions(); // at the event the page's own listeners come first, and what needs no answer is drawn
    const started = ({ timeStamp }) => {
      when(() => areDrawn(before)).then((ms) => (bench.took = ms - timeStamp));
    };
    addEventListener(type, started, { capture: true, once: true });
  };

  const lastStep = () => {
    const said = /step ([\d,]+)/.exec(document.querySelector(".run-details")?.textContent ?? "");
    return said ? Number(said[1].replaceAll(",", "")) : null;
  };

  /** `shown`, of which the newest stays. */
  bench.taken = () => {
    const found = bench.shown;
    bench.shown = found.slice(-1);
    return found;
  };

  /** `shown`: each newer last step with the clock when every lane has been drawn with it. */
  bench.follow = () => {
    let seen = lastStep();
    let before = versions();
    let pending = null;
    const look = () => {
      const step = lastStep();
      // As of the frame before: lanes that had nothing to wait for are drawn in the frame that names the step.
      if (step !== seen) pending = { step, before };
      seen = step;
      before = versions();
      if (pending && areDrawn(pending.before)) {
        bench.shown.push([pending.step, Date.now()]);
        pending = null;
      }
      requestAnimationFrame(look);
    };
    look();
  };
})();
