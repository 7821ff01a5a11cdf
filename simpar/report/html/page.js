// The rest of the page: light or dark, and the first drawing.
"use strict";
const simpar = document.getElementById("series") ? viewOf(JSON.parse(document.getElementById("series").textContent)) : null;
if (simpar) { drawTimeline(simpar); drawMemory(simpar); }
(() => {
  const button = document.getElementById("theme"), names = ["system", "light", "dark"];
  let chosen = 0;
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = (chosen + 1) % names.length;
    button.textContent = `Theme: ${names[chosen]}`;
    if (chosen) document.documentElement.dataset.theme = names[chosen];
    else delete document.documentElement.dataset.theme;
    if (simpar) simpar.redraw();
  });
  if (!simpar) return;
  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", simpar.redraw);
  new ResizeObserver(simpar.redraw).observe(document.getElementById("rows"));
  simpar.redraw();
})();
