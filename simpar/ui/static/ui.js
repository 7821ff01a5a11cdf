// The page: asks for every change, shows the parts of an answer as they come, keeps the link.
import { download, keepFocus, lines, make, percent, seconds, surely, three, whole } from "./asking.js";
import { Pins } from "./pins.js";
import { SectionForm } from "./section.js";
import { Form } from "./plan.js";
import { Search } from "./search.js";
import { fromLink, toLink } from "./state.js";

const $ = (id) => document.getElementById(id);
const slots = new Map([...document.querySelectorAll("[data-slot]")].map((slot) => [slot.dataset.slot, slot]));
const page = { state: null, change: {}, job: {}, pins: null, asking: null, charts: null, form: null, section: null, numbers: null, restored: null };
const MOST_BYTES = 8 * 2 ** 20;
const LATER = ["timeline", "memory_chart", "what_to_try"];

const fail = (words) => { $("error").textContent = words; $("error").hidden = !words; };
const fill = (html) => { for (const [name, text] of Object.entries(html)) if (slots.has(name)) keepFocus(slots.get(name), () => { slots.get(name).innerHTML = text; slots.get(name).classList.remove("stale"); }); };

// The link of what is shown; a change is a step of the history, so that the browser's Back takes it back. The link of a state
// that was restored is put in place, unless Back or Forward has left it since: it would overwrite where they lead.
const keepLink = () => {
  const link = `#${toLink(page.state, page.pins.states)}`;
  if (page.restored === null && link !== location.hash) history.pushState(null, "", link);
  if (page.restored === location.hash) history.replaceState(null, "", link);
  page.restored = null;
};

const hearers = {
  numbers: (found) => {
    fail("");
    page.state = found.state; page.numbers = found; page.change = {}; page.job = {};
    fill(found.html);
    $("title").textContent = found.title;
    document.title = `simpar: ${found.title}`;
    page.form.showState(found.state, found.plan.mesh.dp);
    page.search.showFor(found.state);
    page.pins.showNow(found);
    keepLink();
    const figures = [...slots.get("figures").querySelectorAll("dt")].slice(0, 1).map((dt) => `${dt.textContent} ${dt.nextElementSibling.textContent}`);
    const fits = `${found.fits ? "fits" : "does not fit"}${found.values.fit_probability === null ? "" : `, ${surely(found.values.fit_probability)} sure`}`;
    $("spoken").textContent = `${figures.join(", ")}, ${fits}`;
    const speed = found.values.mfu === null ? `${three(found.values.samples_per_s)} responses/s` : `MFU ${percent(found.values.mfu)}`;
    $("brief").textContent = `${seconds(found.values.step_time_s)} · ${speed} · ${fits}`;
    $("brief").classList.toggle("misfit", !found.fits);
    $("took").textContent = `answered in ${Math.round(performance.now() - page.begun)} ms`;
    $("figures").dataset.answered = page.begun;
  },
  error: (words, part) => {
    fail(words);
    if (part.state) { page.state = part.state; page.change = {}; page.job = {}; page.form.showState(part.state, null); keepLink(); }
    for (const slot of slots.values()) slot.classList.add("stale");
  },
  section: (found) => page.section.show(found),
  choices: (found) => page.form.showChoices(found),
  drawn: (found) => {
    fill(found.html);
    page.charts = viewOf(found.series);
    drawTimeline(page.charts);
    drawMemory(page.charts);
    for (const tools of document.querySelectorAll(".chart .tools")) tools.hidden = false;
    page.charts.redraw();
  },
  operated: (found) => {
    fill(found.html);
    page.numbers.values.whole_run = found.whole_run;
    page.pins.showNow(page.numbers);
  },
  trying: (change) => { $("trying").textContent = `trying ${change} ...`; },
  tried: (found) => {
    $("trying").textContent = "";
    fill(found.html);
    for (const row of slots.get("what_to_try").querySelectorAll(".trials tbody tr")) {
      const flags = row.querySelector("code").textContent;
      const button = make("button", { type: "button", textContent: "Try it", ariaLabel: `Try ${flags}` });
      button.addEventListener("click", (event) => {
        if (!event.detail) $("figures").focus(); // by keyboard: the list goes, the numbers come
        ask({ flags });
      });
      row.querySelector("th").prepend(button);
    }
  },
};

const ask = async ({ change = {}, job = {}, flags = "" } = {}) => {
  page.change = { ...page.change, ...change };
  page.job = { ...page.job, ...job };
  if (Object.keys({ ...change, ...job }).length || flags) page.restored = null;
  if (page.asking) page.asking.abort();
  const asking = new AbortController();
  page.asking = asking; page.begun = performance.now();
  for (const name of LATER) slots.get(name).classList.add("stale");
  $("trying").textContent = "";
  const hear = (part) => { if (page.asking === asking) for (const [name, value] of Object.entries(part)) hearers[name]?.(value, part); };
  try {
    await lines("api/answer", { state: page.state, change: page.change, job: page.job, flags, look: true }, asking.signal, hear);
  } catch (error) {
    if (error.name !== "AbortError") fail(`no answer (${error.message}); is simpar ui still running?`);
  }
};

// Another state altogether: of a link, a pin, a search or a file.
const take = (state) => {
  page.state = state; page.change = {}; page.job = {};
  page.form.showState(state, null);
  return ask();
};

const restore = async () => {
  page.restored = location.hash;
  const found = fromLink(location.hash.slice(1)) ?? { state: page.start, pins: [] };
  const asked = take(found.state);
  const wrong = await page.pins.restore(found.pins);
  if (wrong.length) say(wrong.map((words) => `pin: ${words}`));
  await asked;
};

const say = (all) => {
  $("said").hidden = !all.length;
  $("said").querySelector("ul").replaceChildren(...all.map((textContent) => make("li", { textContent })));
};

// A file that the server makes of the state, and what it says beside it.
const fetched = async (button, address, more = {}) => {
  const held = document.activeElement === button;
  button.disabled = true;
  try {
    const found = await whole(address, { state: page.state, ...more });
    say(found.error ? [found.error] : [...(found.file.lost ?? []).map((one) => `lost: ${one}`), ...(found.file.notes ?? [])]);
    if (found.file) download(found.file);
  } catch (error) {
    say([`no answer (${error.message})`]);
  }
  button.disabled = false;
  if (held && document.activeElement === document.body) button.focus();
};

// Escape closes what was said, else the list that the focus is in.
const escape = (event) => {
  if (event.key !== "Escape" || event.defaultPrevented) return;
  const list = document.activeElement.closest("details[open]");
  if (!$("said").hidden) say([]);
  else if (list) { list.open = false; list.querySelector("summary").focus(); }
};

const opened = async (input) => {
  const file = input.files[0];
  if (!file) return;
  if (file.size > MOST_BYTES) say([`${file.name}: larger than ${MOST_BYTES / 2 ** 20} MiB; allowed: scenarios, plans, results and models' config.json below that`]);
  else {
    const found = await whole("api/open", { state: page.state, name: file.name, text: await file.text() });
    say(found.error ? [found.error] : []);
    if (found.state) await take(found.state);
  }
  input.value = "";
};

const tools = (names) => {
  $("target").append(...names.targets.map((name) => make("option", { value: name, textContent: name })));
  $("pin").addEventListener("click", () => page.numbers && page.pins.add(page.numbers));
  $("yaml").addEventListener("click", () => fetched($("yaml"), "api/yaml"));
  $("page").addEventListener("click", () => fetched($("page"), "api/page"));
  $("export").addEventListener("click", () => fetched($("export"), "api/export", { target: $("target").value, lossy: $("lossy").checked }));
  $("open").addEventListener("change", () => opened($("open")));
  $("link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      say([`the browser does not let pages copy; the link is the address of this page: ${location.href}`]);
      return;
    }
    $("link").textContent = "Copied";
    setTimeout(() => { $("link").textContent = "Copy link"; }, 1500);
  });
};

const theme = () => {
  const names = ["system", "light", "dark"];
  let chosen = 0;
  $("theme").addEventListener("click", () => {
    chosen = (chosen + 1) % names.length;
    $("theme").textContent = `Theme: ${names[chosen]}`;
    if (chosen) document.documentElement.dataset.theme = names[chosen];
    else delete document.documentElement.dataset.theme;
    page.charts?.redraw();
  });
};

const begin = async () => {
  const start = await (await fetch("api/start")).json();
  $("version").textContent = start.version;
  page.start = start.state;
  page.form = new Form(start.names, ask);
  page.section = new SectionForm(ask);
  page.pins = new Pins(take, keepLink);
  page.search = new Search(start.names, () => page.state, take);
  tools(start.names);
  theme();
  new ResizeObserver(() => page.charts?.redraw()).observe(slots.get("timeline"));
  document.addEventListener("keydown", escape);
  window.addEventListener("hashchange", restore);
  await restore();
};
begin();
