// Draws the figures of the report in the reader's theme: each is the JSON in its section, colours are in the element "looks".
(() => {
  const looks = JSON.parse(document.getElementById("looks").textContent);
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, responsive: true };
  const figures = Array.from(document.querySelectorAll(".figure > script"), (source) => {
    const node = document.createElement("div");
    source.after(node);
    return { node, ...JSON.parse(source.textContent) };
  });

  function traceIn(look, trace) {
    const scale = look.scales[trace.meta?.scale];
    if (scale) return { ...trace, colorscale: scale };
    if (trace.name !== "NaN or Inf") return trace;
    return trace.type === "heatmap" ? { ...trace, colorscale: look.nonfinite } : { ...trace, marker: { ...trace.marker, color: look.nonfinite[0][1] } };
  }

  function layoutIn(look, layout) {
    const axis = (own) => ({ ...own, gridcolor: look.line, linecolor: look.line, zerolinecolor: look.line });
    const clear = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    return { ...layout, ...clear, colorway: look.lines, font: { color: look.ink }, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis) };
  }

  function draw() {
    const look = looks[isDark.matches ? "dark" : "light"];
    for (const { node, data, layout } of figures) Plotly.react(node, data.map((trace) => traceIn(look, trace)), layoutIn(look, layout), config);
  }

  isDark.addEventListener("change", draw);
  draw();
})();
