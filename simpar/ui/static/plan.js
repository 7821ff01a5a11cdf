// The controls: menus and numbers of the job, sliders and menus of the plan, whose stops are the legal values.
import { make } from "./asking.js";

const JOB = [
  ["model", "Model", "models"], ["cluster.hardware", "Hardware", "hardware"], ["cluster.nodes", "Nodes"],
  ["training.seq_len", "Tokens a sequence"], ["training.global_batch", "Sequences a step"], ["stack", "Software stack", "stacks"],
];
// Of a whole run, as text; empty where nobody knows. What is sent for a text, and how it is shown.
const RUN = [
  ["training.tokens", "Tokens of the whole run", "15T", (text) => text, (value) => short(value)],
  ["cluster.price_per_device_hour", "Dollars a GPU-hour", "2.50", (text) => `${text} USD/h`, (value) => String(value).replace(" USD/h", "")],
];
const short = (value) => {
  const [size, letter] = [[1e12, "T"], [1e9, "B"], [1e6, "M"]].find(([size]) => Number.isInteger((1000 * value) / size) && value >= size) ?? [1, ""];
  return typeof value === "number" ? `${value / size}${letter}` : value;
};
const SLIDERS = {
  tp: "Tensor parallel", pp: "Pipeline parallel", vpp: "Chunks a pipeline rank", cp: "Context parallel",
  ep: "Expert parallel", micro_batch: "Sequences a microbatch",
};
const MENUS = {
  schedule: "Schedule", zero: "ZeRO stage", recompute: "Recompute", precision: "Precision",
  sequence_parallel: "Sequence parallel", optimizer: "Optimizer", offload_optimizer: "Optimizer states live in",
};
const WORDS = { sequence_parallel: { true: "yes", false: "no" }, offload_optimizer: { none: "device memory", cpu: "host memory", nvme: "drives" } };

const row = (id, words, control, ...more) => make("div", { className: "row" }, make("label", { htmlFor: id, textContent: words }), control, ...more);
const read = (state, key) => key.split(".").reduce((part, name) => (part === undefined ? undefined : part[name]), state);
const options = (select, values, chosen, words = String) => {
  select.replaceChildren(...values.map((value, at) => make("option", { value: at, textContent: words(value), selected: value === chosen })));
};

// Draws the form; changes are handed on: ask({job}) or ask({change}).
export class Form {
  constructor(names, ask) {
    this.names = names; this.ask = ask; this.choices = new Map();
    const job = document.getElementById("job"), plan = document.getElementById("plan");
    for (const [key, words, menu] of JOB) job.append(menu ? this.menuOf(key, words, names[menu]) : this.numberOf(key, words));
    for (const one of RUN) job.append(this.textOf(one));
    for (const name of Object.keys(SLIDERS)) plan.append(this.slider(name));
    for (const name of Object.keys(MENUS)) plan.append(this.menu(name));
    document.getElementById("form").addEventListener("submit", (event) => event.preventDefault());
  }

  menuOf(key, words, names) {
    const select = make("select", { id: key });
    const known = key === "stack" ? [null, ...names] : names;
    select.addEventListener("change", () => this.ask({ job: { [key]: known[select.value] } }));
    select.known = known;
    return row(key, words, select);
  }

  numberOf(key, words) {
    const input = make("input", { id: key, type: "number", min: 1, step: 1, required: true, inputMode: "numeric" });
    input.addEventListener("change", () => { if (input.reportValidity()) this.ask({ job: { [key]: Number(input.value) } }); });
    return row(key, words, input);
  }

  textOf([key, words, example, sent]) {
    const input = make("input", { id: key, placeholder: `such as ${example}`, autocomplete: "off" });
    input.addEventListener("change", () => this.ask({ job: { [key]: input.value.trim() ? sent(input.value.trim()) : null } }));
    return row(key, words, input);
  }

  slider(name) {
    const input = make("input", { id: name, type: "range", min: 0, step: 1, disabled: true });
    const output = make("output", { htmlFor: name, id: `${name}-value` }), also = make("small", { id: `${name}-also` });
    input.setAttribute("aria-describedby", also.id);
    input.addEventListener("input", () => {
      const value = this.choices.get(name).values[Number(input.value)];
      this.say(name, value);
      this.ask({ change: value.change });
    });
    return row(name, `${SLIDERS[name]} (${name.replace("_", "-")})`, input, output, also);
  }

  menu(name) {
    const select = make("select", { id: name, disabled: true }), also = make("small", { id: `${name}-also` });
    select.setAttribute("aria-describedby", also.id);
    select.addEventListener("change", () => {
      const value = this.choices.get(name).values[Number(select.value)];
      also.textContent = value.also ? `with ${value.also}` : "";
      this.ask({ change: value.change });
    });
    return row(name, MENUS[name], select, also);
  }

  say(name, value) {
    const input = document.getElementById(name);
    document.getElementById(`${name}-value`).textContent = value.value;
    document.getElementById(`${name}-also`).textContent = value.also ? `with ${value.also}` : "";
    input.setAttribute("aria-valuetext", `${value.value}${value.also ? `, with ${value.also}` : ""}`);
  }

  // The job of a state, and dp of the plan that it came to.
  showState(state, dp) {
    for (const [key, , menu] of JOB) {
      const control = document.getElementById(key), value = read(state, key) ?? null;
      if (document.activeElement === control && !menu) continue;
      if (!menu) control.value = value;
      else options(control, control.known.includes(value) ? control.known : (control.known = [...control.known, value]), value,
        (each) => (each === null ? "by hardware and plan" : typeof each === "string" ? each : each.name ?? "written in the scenario"));
    }
    for (const [key, , , , shown] of RUN) {
      const control = document.getElementById(key), value = read(state, key);
      if (document.activeElement !== control) control.value = value === undefined ? "" : shown(value);
    }
    document.getElementById("dp").textContent = dp === null ? "" : `Data parallel: ${dp.toLocaleString("en")} ranks follow.`;
  }

  showChoices(choices) {
    this.choices = new Map(choices.map((choice) => [choice.name, choice]));
    for (const name of [...Object.keys(SLIDERS), ...Object.keys(MENUS)]) this.showChoice(name, this.choices.get(name));
    if (!choices.length) document.getElementById("dp").textContent = "Stages or actions of their own: such a plan is changed in its file.";
    const refused = choices.flatMap((choice) => Object.entries(choice.refused).map(([value, why]) => `${choice.name.replace("_", "-")} ${value}: ${why}`));
    const box = document.getElementById("refused");
    box.hidden = !refused.length;
    box.querySelector("summary").textContent = `${refused.length} values are not possible here`;
    box.querySelector("ul").replaceChildren(...refused.map((words) => make("li", { textContent: words })));
  }

  showChoice(name, choice) {
    const control = document.getElementById(name), isSlider = name in SLIDERS;
    control.disabled = !choice || choice.values.length < 2;
    if (!choice) return;
    const at = choice.values.findIndex((value) => value.value === choice.now);
    if (isSlider) {
      control.max = Math.max(0, choice.values.length - 1);
      control.value = Math.max(0, at);
      this.say(name, at < 0 ? { value: choice.now, also: "" } : choice.values[at]);
    } else {
      const words = WORDS[name] ?? {};
      options(control, choice.values, choice.values[at], (value) => `${words[value.value] ?? value.value}${value.also ? ` (with ${value.also})` : ""}`);
      document.getElementById(`${name}-also`).textContent = "";
    }
  }
}
