// The timeline: a row a stage, drawn on a canvas; the strip above it shows where the window is.
"use strict";
const drawTimeline = (simpar) => {
  const { data, stages, span, view } = simpar;
  const rows = document.getElementById("rows"), map = document.getElementById("map");
  const tip = document.getElementById("tip"), spoken = document.getElementById("spoken");
  const unit = data.unit ?? "microbatch", whole = data.unit ? "all steps" : "whole step", everything = `all ${data.unit ? "steps" : "microbatches"}`;
  const usedLanes = [0, 1, 2].filter((lane) => lane === 0 || stages.some((stage) => stage.lanes[lane].begin.length));
  const top = 22, rowHeight = Math.round(Math.min(40, Math.max(13, 620 / stages.length)));
  const height = top + rowHeight * stages.length + 4;
  const lastChunk = Math.max(0, ...stages.flatMap((stage) => stage.lanes[0].chunk));
  const shades = new Map();
  const shade = (kind, chunk) => {
    const key = kind * 1024 + chunk;
    if (!shades.has(key)) {
      const weight = chunk > 0 ? (lastChunk > 2 ? (0.55 * chunk) / lastChunk : 0.22 * chunk) : 0;
      shades.set(key, simpar.lighter(data.kinds[kind].colour, weight));
    }
    return shades.get(key);
  };

  // Upper edge and height of a lane inside its row.
  const lane = (stage, index) => {
    const y = top + stage * rowHeight, inner = rowHeight - (rowHeight > 20 ? 4 : 2), thin = usedLanes.length - 1;
    const main = thin ? inner * (thin === 2 ? 0.64 : 0.8) : inner, part = thin ? (inner - main) / thin : 0;
    return index === 0 ? [y, main] : [y + main + (usedLanes.indexOf(index) - 1) * part + 0.5, Math.max(1.5, part - 0.5)];
  };

  const axis = (context, at, palette) => {
    const step = simpar.tick(view.to - view.from, Math.max(2, at.inner / 110));
    const digits = Math.max(3, Math.ceil(Math.log10(view.to / step)) + 1);
    context.textAlign = "center";
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = at.x(t);
      context.strokeStyle = palette.line;
      context.beginPath(); context.moveTo(x, top - 5); context.lineTo(x, height); context.stroke();
      context.fillStyle = palette.soft;
      context.fillText(t === 0 ? "0" : simpar.time(t, digits), Math.min(Math.max(x, at.left + (t === 0 ? 4 : 18)), at.left + at.inner - 22), 13);
    }
  };

  const text = (context, block, x, width, y, tall) => {
    const { kind, microbatch, chunk, fill } = block;
    if (microbatch < 0 || tall < 11 || width < 12) return;
    const long = `${data.kinds[kind].name} ${microbatch}${lastChunk > 0 ? ` chunk ${chunk}` : ""}`;
    const words = [long, String(microbatch)].find((candidate) => context.measureText(candidate).width + 6 <= width);
    if (!words) return;
    context.fillStyle = simpar.dark(fill) ? "#ffffff" : "#16181d";
    context.fillText(words, x + width / 2, y + tall / 2 + 4);
  };

  const drawLane = (context, at, stage, index) => {
    const column = stages[stage].lanes[index], [y, tall] = lane(stage, index), edge = at.left + at.inner;
    context.textAlign = "center";
    let painted = -1, last = "";
    for (let i = simpar.after(column.reach, view.from); i < column.begin.length && column.begin[i] < view.to; i++) {
      const x = Math.max(at.left, at.x(column.begin[i])), right = Math.min(edge, at.x(column.end[i]));
      const width = Math.max(right - x, index ? 0.75 : 0);
      const fill = shade(column.kind[i], index ? 0 : Math.max(0, column.chunk[i]));
      const faded = view.microbatch !== null && column.microbatch[i] !== view.microbatch;
      if (width < 0.4 && x < painted + 0.5 && fill === last && !faded) continue;
      context.globalAlpha = faded ? 0.18 : 1;
      context.fillStyle = fill;
      context.fillRect(x, y, width > 3 ? width - 0.75 : width, tall);
      if (index === 0 && !faded) text(context, { kind: column.kind[i], microbatch: column.microbatch[i], chunk: column.chunk[i], fill }, x, width, y, tall);
      painted = right; last = fill;
    }
    context.globalAlpha = 1;
  };

  // The ground of a row: bubbles hatched, other causes tinted; all hatched where the result does not say.
  const drawIdle = (context, at, pieces, [y, tall], pattern, edge) => {
    context.fillStyle = pattern;
    if (!pieces) { context.fillRect(at.left, y, edge - at.left, tall); return; }
    for (let i = simpar.after(pieces.end, view.from); i < pieces.begin.length && pieces.begin[i] < view.to; i++) {
      const { name, colour } = data.causes[pieces.cause[i]];
      const x = Math.max(at.left, at.x(pieces.begin[i])), right = Math.min(edge, at.x(pieces.end[i]));
      context.fillStyle = name === "bubble" ? pattern : simpar.lighter(colour, 0.5);
      if (right > x) context.fillRect(x, y, right - x, tall);
    }
  };

  const drawFocus = (context, at, palette) => {
    if (!view.focus) return;
    const { stage, index, row } = view.focus, column = stages[stage].lanes[index], [y, tall] = lane(stage, index);
    const x = Math.max(at.left, at.x(column.begin[row])), right = Math.min(at.left + at.inner, at.x(column.end[row]));
    if (right < at.left || x > at.left + at.inner) return;
    context.strokeStyle = palette.ink; context.lineWidth = 2;
    context.strokeRect(x, y, Math.max(2, right - x), tall);
    context.lineWidth = 1;
  };

  const draw = () => {
    const { context, width } = simpar.prepare(rows, height), at = simpar.scale(width), palette = simpar.palette();
    const idle = simpar.hatch(context, palette.hatch);
    axis(context, at, palette);
    stages.forEach((stage, s) => {
      const [y, tall] = lane(s, 0), end = Math.max(at.left, Math.min(at.left + at.inner, at.x(stage.end)));
      context.fillStyle = palette.paper; context.fillRect(at.left, y, end - at.left, tall);
      drawIdle(context, at, stage.idle, [y, tall], idle, end);
      for (const index of usedLanes) drawLane(context, at, s, index);
      if (stages.length > 40 && s % 4) return;
      context.fillStyle = palette.ink; context.textAlign = "right";
      context.fillText(simpar.label(stage, at.left), at.left - 8, y + Math.min(rowHeight, tall + 6) / 2 + 4, at.left - 10);
    });
    drawFocus(context, at, palette);
    if (view.cursor !== null && view.cursor >= view.from && view.cursor <= view.to) {
      context.strokeStyle = palette.crosshair; context.globalAlpha = 0.55;
      context.beginPath(); context.moveTo(at.x(view.cursor), top - 4); context.lineTo(at.x(view.cursor), height); context.stroke();
      context.globalAlpha = 1;
    }
    drawMap(palette);
    document.getElementById("window").textContent = view.to - view.from >= span
      ? `${whole}, ${simpar.time(span)}` : `${simpar.time(view.from)} to ${simpar.time(view.to)} (${simpar.time(view.to - view.from, 3)} of ${simpar.time(span)})`;
    rows.dataset.from = view.from; rows.dataset.to = view.to;
    rows.dataset.microbatch = view.microbatch === null ? "" : view.microbatch;
  };

  // The strip: share of stages that compute, by kind, in bins of two pixels.
  let strip = null;
  const bins = (count) => {
    const amounts = data.kinds.map(() => new Float64Array(count)), width = span / count;
    for (const stage of stages) {
      const column = stage.lanes[0];
      for (let i = 0; i < column.begin.length; i++) {
        for (let b = Math.floor(column.begin[i] / width); b < count && b * width < column.end[i]; b++) {
          const share = (Math.min(column.end[i], (b + 1) * width) - Math.max(column.begin[i], b * width)) / width;
          amounts[column.kind[i]][b] += Math.max(0, share) / stages.length;
        }
      }
    }
    return amounts;
  };
  const drawMap = (palette) => {
    const tall = 40, { context, width } = simpar.prepare(map, tall), left = simpar.gutter(), inner = Math.max(1, width - left - 8);
    const count = Math.max(1, Math.floor(inner / 2));
    if (!strip || strip.count !== count) strip = { count, amounts: bins(count) };
    context.fillStyle = palette.panel; context.fillRect(left, 0, inner, tall - 4);
    for (let b = 0; b < count; b++) {
      let y = tall - 4;
      strip.amounts.forEach((column, kind) => {
        const part = column[b] * (tall - 4);
        if (part <= 0) return;
        context.fillStyle = data.kinds[kind].colour;
        context.fillRect(left + (b * inner) / count, y - part, inner / count + 0.3, part);
        y -= part;
      });
    }
    const from = left + (view.from / span) * inner, to = left + (view.to / span) * inner;
    context.fillStyle = palette.paper; context.globalAlpha = 0.72;
    context.fillRect(left, 0, from - left, tall - 4); context.fillRect(to, 0, left + inner - to, tall - 4);
    context.globalAlpha = 1; context.strokeStyle = palette.ink;
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), tall - 5);
    context.fillStyle = palette.soft; context.textAlign = "right"; context.fillText("busy", left - 8, 22);
  };

  const find = (x, y) => {
    const stage = Math.floor((y - top) / rowHeight), at = simpar.scale(rows.clientWidth), ns = at.ns(x);
    if (stage < 0 || stage >= stages.length || x < at.left || ns < 0 || ns > stages[stage].end) return null;
    const touched = usedLanes.map((index) => ({ index, edges: lane(stage, index) }));
    const hit = touched.findLast(({ edges }) => y >= edges[0]) || touched[0];
    const column = stages[stage].lanes[hit.index], slack = (2 * (view.to - view.from)) / at.inner;
    for (let i = simpar.after(column.reach, ns - slack); i < column.begin.length && column.begin[i] <= ns + slack; i++) {
      if (column.begin[i] - (hit.index ? slack : 0) <= ns && column.end[i] + (hit.index ? slack : 0) >= ns) return { stage, index: hit.index, row: i, ns };
    }
    return { stage, index: hit.index, row: null, ns };
  };
  const describe = ({ stage, index, row }) => {
    const column = stages[stage].lanes[index], begin = column.begin[row], end = column.end[row];
    const lines = [data.kinds[column.kind[row]].name, `${stages[stage].name}${lastChunk > 0 && column.chunk[row] >= 0 ? `, chunk ${column.chunk[row]}` : ""}`];
    if (column.microbatch[row] >= 0) lines.push(`${unit} ${column.microbatch[row]}`);
    return [...lines, `start ${simpar.time(begin, 6)}`, `duration ${simpar.time(end - begin)}`];
  };
  const waiting = ({ stage, index, ns }) => {
    if (index !== 0) return null;
    const column = stages[stage].lanes[0], next = simpar.after(column.begin, ns), before = next ? column.reach[next - 1] : 0;
    const end = next < column.begin.length ? column.begin[next] : stages[stage].end;
    return ["waits", stages[stage].name, `start ${simpar.time(before, 6)}`, `duration ${simpar.time(end - before)}`];
  };

  const place = (event) => { const box = rows.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const pointers = new Map();
  let moved = 0;
  const hover = (event) => {
    const [x, y] = place(event), found = find(x, y), at = simpar.scale(rows.clientWidth);
    view.cursor = x >= at.left ? at.ns(x) : null;
    const lines = found && (found.row === null ? waiting(found) : describe(found));
    simpar.tip(tip, x, y + rows.offsetTop, lines);
    simpar.redraw();
  };
  rows.addEventListener("pointerdown", (event) => {
    rows.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    moved = 0;
    rows.classList.add("held");
  });
  rows.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return hover(event);
    const at = simpar.scale(rows.clientWidth), perPixel = (view.to - view.from) / at.inner;
    const old = pointers.get(event.pointerId), step = event.clientX - old;
    if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1], box = rows.getBoundingClientRect();
      const before = Math.max(12, Math.abs(old - other)), now = Math.max(12, Math.abs(event.clientX - other));
      simpar.zoom(before / now, at.ns((event.clientX + other) / 2 - box.left));
    } else simpar.pan(-step * perPixel);
    pointers.set(event.pointerId, event.clientX);
    moved += Math.abs(step);
    tip.hidden = true;
  });
  const release = (event) => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved < 4) {
      const found = find(...place(event)), column = found && stages[found.stage].lanes[found.index];
      const chosen = found && found.row !== null ? column.microbatch[found.row] : -1;
      view.microbatch = chosen < 0 || chosen === view.microbatch ? null : chosen;
      view.focus = found && found.row !== null ? found : view.focus;
      simpar.redraw();
    }
    rows.classList.toggle("held", pointers.size > 0);
  };
  rows.addEventListener("pointerup", release);
  rows.addEventListener("pointercancel", release);
  rows.addEventListener("pointerleave", () => { tip.hidden = true; view.cursor = null; simpar.redraw(); });
  rows.addEventListener("dblclick", (event) => simpar.zoom(0.4, simpar.scale(rows.clientWidth).ns(place(event)[0])));
  rows.addEventListener("wheel", (event) => {
    const at = simpar.scale(rows.clientWidth), perPixel = (view.to - view.from) / at.inner;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) simpar.pan(sideways * perPixel);
    else if (event.ctrlKey || event.metaKey || document.activeElement === rows) simpar.zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.005), at.ns(place(event)[0]));
    else return;
    event.preventDefault();
  }, { passive: false });

  const centre = () => {
    if (!view.focus) return (view.from + view.to) / 2;
    const column = stages[view.focus.stage].lanes[view.focus.index];
    return (column.begin[view.focus.row] + column.end[view.focus.row]) / 2;
  };
  const step = (by, down) => {
    if (!view.focus) {
      const first = stages.findIndex((stage) => stage.lanes[0].begin.length);
      if (first < 0) return;
      view.focus = { stage: first, index: 0, row: Math.min(simpar.after(stages[first].lanes[0].reach, view.from), stages[first].lanes[0].begin.length - 1) };
    } else if (down) {
      const at = centre(), stage = Math.min(stages.length - 1, Math.max(0, view.focus.stage + down)), column = stages[stage].lanes[0];
      if (column.begin.length) view.focus = { stage, index: 0, row: Math.max(0, Math.min(column.begin.length - 1, simpar.after(column.begin, at) - 1)) };
    } else {
      const column = stages[view.focus.stage].lanes[view.focus.index];
      view.focus = { ...view.focus, row: Math.min(column.begin.length - 1, Math.max(0, view.focus.row + by)) };
    }
    const at = centre(), width = view.to - view.from;
    if (at < view.from || at > view.to) simpar.show(at - width / 2, at + width / 2);
    spoken.textContent = describe(view.focus).join(", ");
    simpar.redraw();
  };
  const follow = () => {
    if (!view.focus) return;
    const microbatch = stages[view.focus.stage].lanes[view.focus.index].microbatch[view.focus.row];
    view.microbatch = microbatch < 0 || microbatch === view.microbatch ? null : microbatch;
    spoken.textContent = view.microbatch === null ? everything : `following ${unit} ${microbatch}`;
    simpar.redraw();
  };
  const keys = {
    ArrowLeft: (shift) => (shift ? simpar.pan(-0.15 * (view.to - view.from)) : step(-1, 0)),
    ArrowRight: (shift) => (shift ? simpar.pan(0.15 * (view.to - view.from)) : step(1, 0)),
    ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
    "+": () => simpar.zoom(0.6, centre()), "=": () => simpar.zoom(0.6, centre()), "-": () => simpar.zoom(1 / 0.6, centre()),
    0: () => simpar.show(0, span), Enter: follow,
    Escape: () => { view.microbatch = null; view.focus = null; spoken.textContent = everything; simpar.redraw(); },
  };
  rows.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    keys[event.key](event.shiftKey);
    event.preventDefault();
  });

  // Dragging in the strip: inside the window moves it, elsewhere draws a new one.
  let grip = null;
  const onMap = (event) => {
    const box = map.getBoundingClientRect(), left = simpar.gutter();
    return Math.min(span, Math.max(0, ((event.clientX - box.left - left) / Math.max(1, map.clientWidth - left - 8)) * span));
  };
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    const at = onMap(event), inside = at > view.from && at < view.to && view.to - view.from < 0.98 * span;
    grip = { at, inside, from: view.from, to: view.to };
  });
  map.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const at = onMap(event);
    if (grip.inside) simpar.show(grip.from + at - grip.at, grip.to + at - grip.at);
    else if (Math.abs(at - grip.at) > span / 400) simpar.show(Math.min(at, grip.at), Math.max(at, grip.at));
  });
  for (const name of ["pointerup", "pointercancel"]) map.addEventListener(name, () => { grip = null; });

  const buttons = { in: () => simpar.zoom(0.5, centre()), out: () => simpar.zoom(2, centre()), fit: () => simpar.show(0, span) };
  for (const button of document.querySelectorAll("#timeline-chart [data-do]")) button.addEventListener("click", buttons[button.dataset.do]);
  simpar.listeners.push(draw);
};
