// The form of a step of reinforcement learning: a control for every value of the section, as the server lists them.
import { make } from "./asking.js";

const $ = (id) => document.getElementById(id);
const NONE = "none";

export class SectionForm {
  constructor(ask) { this.ask = ask; this.keys = ""; this.fields = new Map(); }

  // Controls are made once for a list of fields, so that the one in use keeps the focus.
  show(fields) {
    const keys = fields.map((field) => field.key).join();
    $("section").hidden = !fields.length;
    for (const [key, words] of Object.entries(fields.length ? RL_WORDS : UPDATE_WORDS)) document.querySelector(`label[for="${CSS.escape(key)}"]`).textContent = words;
    this.fields = new Map(fields.map((field) => [field.key, field]));
    if (keys !== this.keys) this.build(fields);
    this.keys = keys;
    for (const field of fields) this.showField(field);
  }

  build(fields) {
    const more = $("section").querySelector("details");
    for (const row of $("section").querySelectorAll(".row")) row.remove();
    for (const field of fields) {
      const id = `post_training.${field.key}`, control = this.control(field, id);
      const row = make("div", { className: "row" }, make("label", { htmlFor: id, textContent: field.words || field.key }), control);
      if (field.words) more.before(row); else more.append(row);
    }
  }

  control(field, id) {
    const isMenu = field.kind === "menu" || field.kind === "yes";
    const control = isMenu ? make("select", { id }) : make("input", { id, autocomplete: "off", ...(field.kind === "number" ? { type: "number", step: "any" } : {}) });
    control.addEventListener("change", () => this.ask({ job: { [id]: this.meant(field.key, control) } }));
    return control;
  }

  // The value of a control; null where it says none.
  meant(key, control) {
    const field = this.fields.get(key);
    if (control.tagName === "SELECT") return this.allowed(field)[control.selectedIndex];
    const text = control.value.trim();
    if (!text) return null;
    return field.kind === "number" ? Number(text) : text;
  }

  allowed(field) {
    if (field.kind === "yes") return [true, false];
    const known = field.is_open ? [null, ...field.values] : field.values;
    return known.includes(field.now) ? known : [...known, field.now];
  }

  showField(field) {
    const control = $(`post_training.${field.key}`);
    if (control.tagName === "SELECT") {
      const words = (value) => (field.kind === "yes" ? (value ? "yes" : "no") : value ?? NONE);
      control.replaceChildren(...this.allowed(field).map((value) => make("option", { textContent: words(value), selected: value === field.now })));
    } else if (document.activeElement !== control || control.value === "") control.value = field.now ?? "";
  }
}

const UPDATE_WORDS = { "training.seq_len": "Tokens a sequence", "training.global_batch": "Sequences a step" };
const RL_WORDS = { "training.seq_len": "Tokens of prompt and response", "training.global_batch": "Responses an update" };
