// Loads and calls Plotly. The only file that touches window.Plotly.

/** @typedef {import("./drawing.js").Drawing} Drawing */

const LIBRARY = new URL("../vendor/plotly-cartesian.min.js", import.meta.url).href;

/** @type {Promise<void> | null} */
let loading = null;

/**
 * Before anything else here. The library runs for a quarter of a second before it can draw: asked for when the first
 * requests are out, it does so while the server answers them. The shell has fetched it by then.
 * @returns {Promise<void>}
 */
export function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = LIBRARY;
    script.onload = () => resolve();
    script.onerror = () => {
      loading = null; // the next figure asks again
      script.remove();
      reject(new Error("The drawing library did not load. Reload the page."));
    };
    document.head.append(script);
  });
  return loading;
}

const plotly = () => /** @type {any} */ (window).Plotly;

const CONFIG = {
  staticPlot: true, // pointers and keys are ours: Plotly would draw a dragged range itself, and only then report it
  displayModeBar: false,
  displaylogo: false,
  responsive: false, // lanes watch their own width, because a new width needs new columns
};

/** Draw or update in place. @param {HTMLElement} node @param {Drawing} drawing */
export async function draw(node, drawing) {
  await plotly().react(node, drawing.traces, drawing.layout, CONFIG);
}

/** @param {HTMLElement} node */
export function purge(node) {
  plotly().purge(node);
}

/**
 * A drawing of its own as a PNG, two of its pixels to one of the screen.
 * @param {Drawing} drawing whose layout has its size
 * @returns {Promise<string>} a data URL
 */
export function pngUrl({ traces, layout }) {
  const { width, height } = /** @type {{width: number, height: number}} */ (layout);
  return plotly().toImage({ data: traces, layout, config: { staticPlot: true } }, { format: "png", width, height, scale: 2 });
}
