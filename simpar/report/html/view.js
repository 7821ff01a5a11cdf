// What all charts of the page share: the data, the visible window of time, colours, and how times are written.
"use strict";
const viewOf = (data) => {
  const FONT = "12px system-ui, sans-serif";
  const sum = (column) => { let total = 0; return Float64Array.from(column, (step) => (total += step)); };

  // Columns of a stage by lane, sorted by start. reach[i] is the latest end among blocks 0..i: it grows, so the
  // first block that touches a window is found by bisection even where blocks of a lane overlap.
  const lanes = (blocks) => {
    const start = sum(blocks.start);
    return [0, 1, 2].map((lane) => {
      const rows = blocks.kind.flatMap((kind, i) => (data.kinds[kind].lane === lane ? [i] : []));
      let latest = 0;
      const begin = Float64Array.from(rows, (i) => start[i]);
      const end = Float64Array.from(rows, (i) => start[i] + blocks.duration[i]);
      return {
        begin, end, reach: end.map((value) => (latest = Math.max(latest, value))),
        kind: rows.map((i) => blocks.kind[i]), chunk: rows.map((i) => blocks.chunk[i]),
        microbatch: rows.map((i) => blocks.microbatch[i]),
      };
    });
  };
  // Idle pieces in order of time, which do not overlap; null where the result does not say.
  const idle = (pieces) => {
    if (!pieces) return null;
    const begin = sum(pieces.start);
    return { begin, end: begin.map((start, i) => start + pieces.duration[i]), cause: pieces.cause };
  };
  const curve = (memory) => {
    if (!memory) return null;
    const time = sum(memory.time);
    const parts = memory.parts.map((part) => (typeof part === "number" ? new Float64Array(time.length).fill(part) : Float64Array.from(part)));
    return { time, parts, total: time.map((_, i) => parts.reduce((all, part) => all + part[i], 0)) };
  };
  const stages = data.stages.map((stage) => ({
    name: stage.name, multiplicity: stage.multiplicity, end: stage.end_ns, capacity: stage.capacity_kib, reserved: stage.reserved_kib, lanes: lanes(stage.blocks), idle: idle(stage.idle), memory: curve(stage.memory),
  }));

  // First index whose value is greater than x, in an ascending column.
  const after = (column, x) => {
    let low = 0, high = column.length;
    while (low < high) { const middle = (low + high) >> 1; if (column[middle] > x) high = middle; else low = middle + 1; }
    return low;
  };

  const span = data.step_ns, least = Math.min(span, Math.max(50, span * 1e-6));
  const view = { from: 0, to: span, cursor: null, microbatch: null, focus: null };
  const listeners = [];
  let pending = false;
  const redraw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; listeners.forEach((draw) => draw()); });
  };
  const show = (from, to) => {
    const width = Math.min(span, Math.max(least, to - from));
    const centre = (from + to) / 2;
    view.from = Math.min(Math.max(0, width === to - from ? from : centre - width / 2), span - width);
    view.to = view.from + width;
    redraw();
  };
  const zoom = (factor, at) => show(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const pan = (by) => show(view.from + by, view.to + by);

  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  const time = (ns, digits = 4) => {
    const [scale, name] = units.find(([size]) => Math.abs(ns) >= size) || [1, "ns"];
    return `${Number((ns / scale).toPrecision(digits))} ${name}`;
  };
  const bytes = (kib) => (kib >= 104857.6 ? `${(kib / 1048576).toPrecision(3)} GiB` : `${(kib / 1024).toPrecision(3)} MiB`);

  // A step of 1, 2 or 5 times a power of ten that puts about `count` ticks into a width.
  const tick = (width, count) => {
    const rough = width / count, power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => Object.fromEntries(["paper", "panel", "ink", "soft", "line", "hatch", "bad", "crosshair"].map((name) => [name, colour(`--${name}`)]));
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const lighter = (hex, weight) => `#${rgb(hex).map((c) => Math.round(c + (255 - c) * weight).toString(16).padStart(2, "0")).join("")}`;
  const dark = (hex) => { const [r, g, b] = rgb(hex); return 0.299 * r + 0.587 * g + 0.114 * b < 140; };

  // Size a canvas for the screen's pixels; returns its context in CSS pixels.
  const prepare = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    return { context, width };
  };
  const hatch = (context, colour) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour;
    for (const shift of [-8, 0, 8]) { pen.moveTo(shift, 8); pen.lineTo(shift + 8, 0); }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  };
  // Names of rows stand left of the drawing: as wide as the longest, within limits.
  const label = (stage, room) => (stage.multiplicity > 1 && room > 80 ? `${stage.name} ×${stage.multiplicity}` : stage.name);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = FONT;
  const widest = Math.ceil(Math.max(0, ...stages.map((stage) => pen.measureText(label(stage, 104)).width))) + 14;
  const gutter = () => {
    const [least, most] = document.body.clientWidth < 640 ? [58, 112] : [104, 220];
    return Math.min(Math.max(least, widest), most);
  };
  const scale = (width) => {
    const left = gutter(), inner = Math.max(1, width - left - 8);
    return {
      left, inner,
      x: (ns) => left + ((ns - view.from) / (view.to - view.from)) * inner,
      ns: (x) => view.from + ((x - left) / inner) * (view.to - view.from),
    };
  };
  const tip = (box, x, y, lines) => {
    box.hidden = !lines;
    if (!lines) return;
    box.replaceChildren(...lines.map((text, i) => Object.assign(document.createElement(i ? "div" : "b"), { textContent: text })));
    const room = box.parentElement.clientWidth;
    box.style.left = `${Math.max(0, x + 16 + box.offsetWidth > room ? x - 16 - box.offsetWidth : x + 16)}px`;
    box.style.top = `${y + 14}px`;
  };
  return { data, stages, span, view, listeners, redraw, show, zoom, pan, after, time, bytes, tick, palette, lighter, dark, prepare, hatch, scale, tip, gutter, label };
};
