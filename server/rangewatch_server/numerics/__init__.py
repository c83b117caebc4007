"""Pure arithmetic: merges of the pyramid, headroom and its states, which NaN or Inf of a step was first. No I/O."""
