// Buttons and forms with data-action="METHOD PATH" call the API.
import { ApiError, call, type Fault } from "./api";
import { confirmed } from "./dialogs";
import { all, announce, el, url } from "./dom";
import { expectChange, refreshNow } from "./live";

type Json = Record<string, unknown>;

type Field = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;

/** The field's value; undefined: it is empty. */
function valueOf(field: Field): unknown {
  const list = field.dataset["type"] === "list";
  if (field.type === "checkbox") {
    const { checked } = field as HTMLInputElement;
    return list ? (checked ? [field.value] : undefined) : checked;
  }
  const text = field.value;
  if (text.trim() === "") return undefined;
  if (field.type === "number") return Number(text);
  // What is typed is in the reader's zone.
  if (field.type === "datetime-local") return new Date(text).toISOString();
  return list ? text.split(/[,\n]/).map((part) => part.trim()).filter(Boolean) : text;
}

/** The fields of a form as a JSON document; "a.b" is b inside a. Lists of fields with the same name are joined. */
function documentOf(form: HTMLFormElement): Json {
  const document: Json = {};
  for (const field of form.elements) {
    const known = field instanceof HTMLInputElement || field instanceof HTMLSelectElement || field instanceof HTMLTextAreaElement;
    if (!known || !field.name || field.disabled) continue;
    const value = valueOf(field);
    if (value === undefined) continue;
    const path = field.name.split(".");
    const last = path.pop() as string;
    let inside = document;
    for (const key of path) inside = (inside[key] ??= {}) as Json;
    const before = inside[last];
    inside[last] = Array.isArray(before) && Array.isArray(value) ? [...before, ...value] : value;
  }
  return document;
}

/** Name what describes a field: its hints, which the page has, and perhaps an error. */
function describe(field: HTMLElement, error: string | null): void {
  const ids = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id && !id.startsWith("error-"));
  if (error) ids.push(error);
  if (ids.length) field.setAttribute("aria-describedby", ids.join(" "));
  else field.removeAttribute("aria-describedby");
}

function clear(form: HTMLElement): void {
  for (const shown of all(form, ".field-error")) shown.remove();
  for (const field of all(form, "[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    describe(field, null);
  }
  form.querySelector("[data-errors]")?.replaceChildren();
}

function region(form: HTMLElement): HTMLElement {
  let found = form.querySelector<HTMLElement>("[data-errors]");
  if (!found) form.prepend((found = el("div", { "data-errors": true })));
  found.setAttribute("role", "alert");
  return found;
}

/** Show a fault at its field: the one that its pointer names, else the one whose value contains it. Is there one? */
function place(form: HTMLFormElement, fault: Fault): boolean {
  const names = (fault.pointer ?? `/${fault.parameter ?? ""}`).replace(/^#?\//, "").split("/");
  for (let count = names.length; count > 0; count -= 1) {
    const name = names.slice(0, count).join(".");
    const found = name ? form.elements.namedItem(name) : null;
    // Of several fields with one name the last one is for what is typed.
    const field = found instanceof RadioNodeList ? [...found].at(-1) : found;
    if (!(field instanceof HTMLElement)) continue;
    const id = `error-${name.replaceAll(".", "-")}`;
    const known = form.querySelector(`#${CSS.escape(id)}`);
    if (known) known.append(el("br"), fault.detail);
    else field.after(el("p", { class: "field-error", id }, fault.detail));
    field.setAttribute("aria-invalid", "true");
    describe(field, id);
    return true;
  }
  return false;
}

/** Show a failed call: each fault at its field, the others in the form's region. */
function showError(form: HTMLFormElement, error: ApiError): void {
  clear(form);
  const rest = error.faults.filter((fault) => !place(form, fault));
  const list = el("ul");
  for (const fault of rest) list.append(el("li", {}, `${fault.pointer || fault.parameter || "The document"}: ${fault.detail}`));
  region(form).replaceChildren(el("p", { class: "error" }, error.message), ...(rest.length ? [list] : []));
  (form.querySelector<HTMLElement>("[aria-invalid]") ?? region(form)).focus();
}

function fill(template: string, answer: unknown): string {
  return template.replace(/\{(\w+)\}/g, (_, key: string) => encodeURIComponent(String((answer as Json | null)?.[key] ?? "")));
}

async function run(element: HTMLElement, form: HTMLFormElement | null, submitter: HTMLElement | null): Promise<void> {
  const [method = "POST", template = ""] = (element.dataset["action"] ?? "").split(" ", 2);
  const name = submitter?.textContent?.trim() || element.textContent?.trim() || "Continue";
  const question = element.dataset["confirm"];
  if (question && !(await confirmed(question, name, element.dataset["danger"] !== undefined))) return;
  const button = submitter ?? element;
  button.setAttribute("aria-busy", "true");
  try {
    const text = element.dataset["body"];
    const fields = form ? documentOf(form) : null;
    const path = fill(template, fields);
    // What the path names is not in the body as well.
    if (fields) for (const [, key] of template.matchAll(/\{(\w+)\}/g)) delete fields[key as string];
    const body = fields ?? (text ? (JSON.parse(text) as unknown) : undefined);
    const response = await call(method, path, method === "DELETE" && !text ? undefined : body);
    const isJson = response.headers.get("content-type")?.includes("json");
    const answer: unknown = isJson ? await response.json() : null;
    if (form) clear(form);
    const then = element.dataset["then"] ?? "refresh";
    if (element.dataset["done"]) announce(fill(element.dataset["done"], answer));
    const result = element.querySelector("[data-result]");
    if (result && element.dataset["show"]) result.textContent = String((answer as Json | null)?.[element.dataset["show"]] ?? "");
    if (response.status === 202) expectChange();
    if (then === "refresh") {
      // What was typed is no longer the reader's alone: the fields take what the service has.
      form?.reset();
      await refreshNow();
    } else if (then !== "stay") location.assign(url(fill(then, answer)));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (form) showError(form, error);
    else announce([error.message, ...error.faults.map((fault) => fault.detail)].join(" "), "error");
  } finally {
    button.removeAttribute("aria-busy");
  }
}

export function installActions(): void {
  document.addEventListener("click", (event) => {
    const element = (event.target as Element).closest?.<HTMLElement>("[data-action]:not(form)");
    if (!element || element.getAttribute("aria-busy")) return;
    event.preventDefault();
    void run(element, null, null);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.dataset["action"] === undefined) return;
    event.preventDefault();
    const submitter = event.submitter;
    if (submitter?.getAttribute("aria-busy")) return;
    void run(form, form, submitter);
  });
}
