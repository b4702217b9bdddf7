// A form beside the editor for those who do not know the keys. The editor's text is the only document: the form changes keys in it,
// leaves all others and the comments as they are, and shows what the text says after each change of it.
import { isMap, parseDocument } from "yaml";
import { all, el } from "./dom";
import { type Change, FIELDS, type Job } from "./job-fields";
import type { Widget } from "./widgets";

/** The text's job, or why the form cannot edit it. */
function jobIn(text: string): Job | string {
  const found = parseDocument(text);
  if (found.errors.length) return "The text is not YAML. The form can be used again once it is.";
  if (found.contents === null) return {};
  if (!isMap(found.contents) || found.has("jobs")) return "The text has several jobs. The form is for one.";
  try {
    return found.toJS({ maxAliasCount: 100 }) as Job;
  } catch {
    return "The text repeats itself too often. The form can be used again once it does not.";
  }
}

/** The text of one job after a change of the form's field. */
function edited(text: string, change: Change): string {
  const found = parseDocument(text);
  const real = change.filter(([path, value]) => value !== undefined || found.hasIn(path));
  if (!real.length) return text;
  for (const [path, value] of real) {
    const [key = "", inside] = path;
    if (value === undefined) found.deleteIn(path);
    else if (inside !== undefined && !isMap(found.get(key))) found.set(key, found.createNode({ [inside]: value }));
    // A plain value takes the place of the one before it, whose comment stays.
    else found.setIn(path, Array.isArray(value) ? found.createNode(value, { flow: true }) : value);
  }
  if (isMap(found.contents) && !found.contents.items.length) return "";
  return found.toString({ lineWidth: 0, flowCollectionPadding: false });
}

class JobForm implements Widget {
  private readonly area: HTMLTextAreaElement;
  private readonly note = el("p", { class: "info", role: "status", hidden: true });
  private readonly stopped = new AbortController();

  constructor(private readonly host: HTMLElement) {
    const area = document.querySelector<HTMLTextAreaElement>(host.dataset["text"] ?? "");
    if (!area) throw new Error("The form has no text.");
    this.area = area;
    host.prepend(this.note);
    const { signal } = this.stopped;
    area.addEventListener("input", () => this.show(), { signal });
    host.addEventListener("change", (event) => this.take(event.target), { signal });
    this.show();
  }

  destroy(): void {
    this.stopped.abort();
  }

  private get inputs(): HTMLInputElement[] {
    return all<HTMLInputElement>(this.host, "input[name]");
  }

  /** Show what the text says. A field that is being typed in keeps its text. */
  private show(): void {
    const found = jobIn(this.area.value);
    const problem = typeof found === "string" ? found : null;
    this.note.textContent = problem;
    this.note.hidden = problem === null;
    for (const input of this.inputs) {
      const text = typeof found === "string" ? null : (FIELDS[input.name]?.read(found) ?? null);
      input.disabled = problem !== null || text === null;
      input.placeholder = problem === null && text === null ? "as in the text" : (input.dataset["example"] ?? "");
      if (problem !== null || input === document.activeElement) continue;
      input.value = text ?? "";
      this.fault(input, null);
    }
  }

  private take(target: EventTarget | null): void {
    if (!(target instanceof HTMLInputElement)) return;
    const change = FIELDS[target.name]?.write(target.value.trim());
    if (change === undefined) return;
    this.fault(target, typeof change === "string" ? change : null);
    if (typeof change === "string") return;
    const text = edited(this.area.value, change);
    if (text === this.area.value) return;
    this.area.value = text;
    this.area.dispatchEvent(new Event("sooner:write"));
    this.show();
  }

  private fault(input: HTMLInputElement, problem: string | null): void {
    const id = `${input.id}-error`;
    document.getElementById(id)?.remove();
    input.removeAttribute("aria-invalid");
    const hint = input.dataset["hint"];
    if (hint) input.setAttribute("aria-describedby", hint);
    else input.removeAttribute("aria-describedby");
    if (problem === null) return;
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", id);
    input.after(el("p", { class: "field-error", id }, problem));
  }
}

export function mount(host: HTMLElement): Widget {
  return new JobForm(host);
}
