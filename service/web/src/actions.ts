// Buttons and forms with data-action="METHOD PATH" call the API.
import { ApiError, call, type Fault } from "./api";
import { confirmed } from "./dialogs";
import { all, announce, el, url } from "./dom";
import { expectChange, refreshNow } from "./live";

type Json = Record<string, unknown>;

function convert(field: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement): unknown {
  if (field instanceof HTMLInputElement && field.type === "checkbox") return field.checked;
  const text = field.value;
  if (text.trim() === "") return undefined;
  const kind = field.dataset["type"] ?? (field instanceof HTMLInputElement && /^(number|range)$/.test(field.type) ? "number" : "string");
  if (kind === "number") return Number(text);
  if (kind === "json") return JSON.parse(text) as unknown;
  if (kind === "list") return text.split(/[,\n]/).map((part) => part.trim()).filter(Boolean);
  return text;
}

/** The fields of a form as a JSON document; "a.b" is b inside a. Raises ApiError for text that is not JSON. */
export function documentOf(form: HTMLFormElement): Json {
  const document: Json = {};
  for (const field of form.elements) {
    const known = field instanceof HTMLInputElement || field instanceof HTMLSelectElement || field instanceof HTMLTextAreaElement;
    if (!known || !field.name || field.disabled) continue;
    if (field instanceof HTMLInputElement && field.type === "radio" && !field.checked) continue;
    let value: unknown;
    try {
      value = convert(field);
    } catch {
      const pointer = `/${field.name.replaceAll(".", "/")}`;
      throw new ApiError(422, "A field is invalid.", [{ pointer, detail: "must be JSON" }]);
    }
    if (value === undefined) continue;
    const path = field.name.split(".");
    const last = path.pop() as string;
    let inside = document;
    for (const key of path) inside = (inside[key] ??= {}) as Json;
    inside[last] = value;
  }
  return document;
}

function clear(form: HTMLElement): void {
  for (const shown of all(form, ".field-error")) shown.remove();
  for (const field of all(form, "[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
  form.querySelector("[data-errors]")?.replaceChildren();
}

function region(form: HTMLElement): HTMLElement {
  const found = form.querySelector<HTMLElement>("[data-errors]");
  if (found) return found;
  const made = el("div", { "data-errors": true, role: "alert" });
  form.prepend(made);
  return made;
}

function place(form: HTMLFormElement, fault: Fault): boolean {
  const name = (fault.pointer ?? `/${fault.parameter ?? ""}`).replace(/^#?\//, "").replaceAll("/", ".");
  const field = form.elements.namedItem(name);
  if (!name || !(field instanceof HTMLElement)) return false;
  const id = `error-${name.replaceAll(".", "-")}`;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", id);
  field.after(el("p", { class: "field-error", id }, fault.detail));
  return true;
}

/** Show a failed call: each fault at its field, the others in the form's region. */
export function showError(form: HTMLFormElement, error: ApiError): void {
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
  const [method = "POST", path = ""] = (element.dataset["action"] ?? "").split(" ", 2);
  const name = submitter?.textContent?.trim() || element.textContent?.trim() || "Continue";
  const question = element.dataset["confirm"];
  if (question && !(await confirmed(question, name, element.dataset["danger"] !== undefined))) return;
  const button = submitter ?? element;
  button.setAttribute("aria-busy", "true");
  try {
    const text = element.dataset["body"];
    const body = form ? documentOf(form) : text ? (JSON.parse(text) as unknown) : undefined;
    const response = await call(method, path, method === "DELETE" && !text ? undefined : body);
    const isJson = response.headers.get("content-type")?.includes("json");
    const answer: unknown = isJson ? await response.json() : null;
    if (form) clear(form);
    const then = element.dataset["then"] ?? "refresh";
    if (element.dataset["done"]) announce(fill(element.dataset["done"], answer));
    const result = element.querySelector("[data-result]");
    if (result && element.dataset["show"]) result.textContent = String((answer as Json | null)?.[element.dataset["show"]] ?? "");
    element.dispatchEvent(new CustomEvent("sooner:done", { bubbles: true, detail: answer }));
    if (response.status === 202) expectChange();
    if (then === "refresh") await refreshNow();
    else if (then !== "stay") location.assign(url(fill(then, answer)));
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
