// Memory over time of one stage, stacked by kind, in the window of the timeline.
"use strict";
const drawMemory = (simpar) => {
  const { data, stages, view } = simpar;
  const canvas = document.getElementById("curve"), chooser = document.getElementById("stage"), tip = document.getElementById("curve-tip");
  const words = document.getElementById("curve-words");
  if (!stages.some((stage) => stage.memory)) { document.getElementById("memory-chart").hidden = true; return; }
  const height = 250, top = 10, bottom = 22, gib = 1048576;
  // A stage's interval is the 90 % one of its result's fullest stage; null elsewhere, and where the result does not say.
  const highest = 1.05 * Math.max(...stages.map((stage) => (stage.reserved ? stage.reserved[1] : 0)), ...stages.map((stage) => Math.max(stage.capacity, stage.memory ? stage.memory.total.reduce((a, b) => Math.max(a, b), 0) : 0)));
  const y = (kib) => height - bottom - (kib / highest) * (height - top - bottom);
  const shown = () => stages[Number(chooser.value)], chosen = () => shown().memory;

  // Calls visit(x, i) at both ends of every step of the curve that is in the window.
  const walk = (memory, at, visit) => {
    const first = Math.max(0, simpar.after(memory.time, view.from) - 1);
    for (let i = first; i < memory.time.length && memory.time[i] < view.to; i++) {
      const end = i + 1 < memory.time.length ? memory.time[i + 1] : shown().end;
      visit(Math.max(at.left, at.x(memory.time[i])), i);
      visit(Math.min(at.left + at.inner, at.x(end)), i);
    }
  };
  const area = (context, memory, at, lower, upper, fill) => {
    const below = [];
    context.beginPath();
    walk(memory, at, (x, i) => { context.lineTo(x, y(upper[i])); below.push([x, y(lower[i])]); });
    below.reverse().forEach(([x, level]) => context.lineTo(x, level));
    context.closePath();
    context.fillStyle = fill; context.fill();
  };
  const axes = (context, at, palette) => {
    const step = simpar.tick(highest / gib, 5);
    context.textAlign = "right";
    for (let level = 0; level * gib <= highest; level += step) {
      context.strokeStyle = palette.line;
      context.beginPath(); context.moveTo(at.left, y(level * gib)); context.lineTo(at.left + at.inner, y(level * gib)); context.stroke();
      context.fillStyle = palette.soft;
      context.fillText(`${Number(level.toPrecision(3))} GiB`, at.left - 8, y(level * gib) + 4);
    }
    context.textAlign = "center";
    const width = simpar.tick(view.to - view.from, Math.max(2, at.inner / 110)), digits = Math.max(3, Math.ceil(Math.log10(view.to / width)) + 1);
    for (let t = Math.ceil(view.from / width) * width; t <= view.to; t += width) {
      context.fillText(t === 0 ? "0" : simpar.time(t, digits), Math.min(Math.max(at.x(t), at.left + (t === 0 ? 4 : 18)), at.left + at.inner - 22), height - 6);
    }
  };
  const band = (context, at, palette) => {
    const [low, high] = shown().reserved, above = y(high), below = y(low);
    context.fillStyle = simpar.hatch(context, palette.soft); context.globalAlpha = 0.6;
    context.fillRect(at.left, above, at.inner, below - above);
    context.globalAlpha = 1; context.strokeStyle = palette.soft;
    for (const level of [above, below]) { context.beginPath(); context.moveTo(at.left, level); context.lineTo(at.left + at.inner, level); context.stroke(); }
  };
  const draw = () => {
    const memory = chosen(), { context, width } = simpar.prepare(canvas, height), at = simpar.scale(width), palette = simpar.palette();
    axes(context, at, palette);
    let lower = new Float64Array(memory.time.length);
    data.parts.forEach((part, p) => {
      const upper = lower.map((value, i) => value + memory.parts[p][i]);
      area(context, memory, at, lower, upper, part.colour);
      lower = upper;
    });
    context.strokeStyle = palette.bad; context.setLineDash([6, 4]); context.lineWidth = 1.5;
    const { capacity, reserved } = shown();
    context.beginPath(); context.moveTo(at.left, y(capacity)); context.lineTo(at.left + at.inner, y(capacity)); context.stroke();
    context.setLineDash([]); context.lineWidth = 1;
    if (reserved) band(context, at, palette);
    // beside the chart, where no curve can lie under it
    words.textContent = `dashed: capacity ${simpar.bytes(capacity)}${reserved ? `; hatched: reserved peak ${simpar.bytes(reserved[0])} to ${simpar.bytes(reserved[1])} (90 % interval)` : ""}`;
    if (view.cursor !== null && view.cursor >= view.from && view.cursor <= view.to) {
      context.strokeStyle = palette.crosshair; context.globalAlpha = 0.55;
      context.beginPath(); context.moveTo(at.x(view.cursor), top); context.lineTo(at.x(view.cursor), height - bottom); context.stroke();
      context.globalAlpha = 1;
    }
    canvas.dataset.stage = chooser.value;
    canvas.dataset.reserved = reserved ? reserved.map(y).join(" ") : "";
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, at = simpar.scale(canvas.clientWidth), memory = chosen();
    view.cursor = x >= at.left && x <= at.left + at.inner ? at.ns(x) : null;
    const i = view.cursor === null ? -1 : simpar.after(memory.time, view.cursor) - 1;
    simpar.tip(tip, x, event.clientY - box.top + canvas.offsetTop, i < 0 ? null : [
      `${simpar.bytes(memory.total[i])} at ${simpar.time(view.cursor, 6)}`,
      ...data.parts.map((part, p) => `${part.name} ${simpar.bytes(memory.parts[p][i])}`).reverse(),
    ]);
    simpar.redraw();
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; view.cursor = null; simpar.redraw(); });
  chooser.addEventListener("change", simpar.redraw);
  simpar.listeners.push(draw);
};
