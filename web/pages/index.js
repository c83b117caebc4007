// The one list of pages. A new page is a file here and a line below.

import collectives from "./collectives.js";
import environment from "./environment.js";
import gpu from "./gpu.js";
import gpus from "./gpus.js";
import hang from "./hang.js";
import layers from "./layers.js";
import overview from "./overview.js";
import runs from "./runs.js";
import step from "./step.js";
import tensor from "./tensor.js";

/** @type {readonly import("../types.js").Page[]} */
export const PAGES = [runs, overview, hang, layers, tensor, step, collectives, gpus, gpu, environment];
