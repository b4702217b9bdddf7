// Elements are made here. Text reaches the page only as text: no string is ever parsed as HTML.

type Child = Node | string | null | undefined;

/** A new element. A false or null attribute is left out, a true one is empty. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number | boolean | null | undefined> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
  return made;
}

export function all<T extends Element = HTMLElement>(root: ParentNode, selector: string): T[] {
  return [...root.querySelectorAll<T>(selector)];
}

/** The content of <meta name=...>, or an empty string. */
export function meta(name: string): string {
  return document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";
}

/** Absolute URL of the service's root, wherever a proxy put it. It ends with a slash. */
export function root(): URL {
  return new URL(meta("root") || "./", document.baseURI);
}

/** A URL of this service from a path below its root, such as "v1/jobs". */
export function url(path: string): URL {
  return new URL(path, root());
}

/** Is the element one that takes typed text? */
export function isTyping(element: Element | null): boolean {
  if (!(element instanceof HTMLElement)) return false;
  if (element.shadowRoot?.activeElement) return isTyping(element.shadowRoot.activeElement);
  if (element.isContentEditable || element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement) return true;
  return element instanceof HTMLInputElement && !/^(button|checkbox|radio|submit|reset|range|color|file)$/.test(element.type);
}

/** Announce a short message visibly and to screen readers. Errors stay until they are closed. */
export function announce(text: string, kind: "done" | "error" = "done"): void {
  let region = document.getElementById("messages");
  if (!region) {
    region = el("div", { id: "messages", "aria-live": "polite" });
    document.body.append(region);
  }
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Close the message" }, "×");
  const message = el("div", { class: `message ${kind}`, role: kind === "error" ? "alert" : null }, el("span", {}, text), close);
  close.addEventListener("click", () => message.remove());
  if (kind === "done") setTimeout(() => message.remove(), 6000);
  while (region.childElementCount >= 4) region.firstElementChild?.remove();
  region.append(message);
}
